# frozen_string_literal: true

# For ActiveJob's integration tests: a worker in a process of its own

require "activejob-queue"

module QueueJobsManager
  WORKER = File.expand_path("../../../exe/activejob-queue", File.realpath(__FILE__))

  def setup
    connection = PG.connect
    ActiveJob::Base.queue_adapter = :queue
    ActiveJob::Base.queue_adapter.connection = connection
  end

  def clear_jobs
    PG.connect { |connection| connection.exec("SELECT queue_purge('integration_tests')") }
  end

  # The application's own database is SQLite, so the worker connects as PGHOST and so on say.
  def start_workers
    @pid = spawn("ruby", WORKER, "-r", Rails.root.join("config/environment").to_s, "integration_tests",
                 [:out, :err] => Rails.root.join("log/worker.log").to_s)
  end

  def stop_workers
    Process.kill("TERM", @pid)
    Process.wait(@pid)
    puts File.readlines(Rails.root.join("log/worker.log")).grep_v(/^\[ActiveJob\]/)
  end
end
