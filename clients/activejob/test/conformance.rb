# frozen_string_literal: true

# The runner of clients/conformance: its argument says what to do.  It is a program, and
# the file of the jobs of the worker that it becomes.

require "activejob-queue"

unless defined?(StepsJob)
  config = JSON.parse(ARGV.pop)
  work = config["work"]
  limits = work.values.map { |options| options["timeout"] }.compact
  ARGV.replace(["-r", __FILE__, "--threads", work.values.sum { |options| options["concurrency"] || 1 }.to_s])
  ARGV.push("--timeout", limits.min.to_s) unless limits.empty?
  { "ttl" => "--claim", "stop" => "--stop" }.each do |field, option|
    ARGV.push(option, config[field].to_s) if config[field]
  end
  ARGV.concat(work.keys)

  ActiveJob::Base.queue_adapter = :queue
  ActiveJob::Base.logger = Logger.new(nil)

  class StepsJob < ActiveJob::Base
    OWN = Mutex.new
    RUNS = Hash.new(0)

    # Over the runner's own connection, which may have been terminated.  A statement is not
    # interrupted.
    def own(sql, *values)
      Thread.handle_interrupt(Worker::Aborted => :never) do
        OWN.synchronize do
          $own ||= PG.connect("application_name=runner")
          $own.exec_params(sql, values).to_a
        rescue PG::Error
          $own = nil
          sleep 0.1
          retry
        end
      end
    end

    def sql(text, *values)
      ActiveJob::QueueAdapters::QueueAdapter.query(ActiveJob::Base.queue_adapter.connection, text, *values)
    end

    def perform(body, queue, attempt)
      run = OWN.synchronize { RUNS[provider_job_id] += 1 }
      body = JSON.parse(body)
      raise "the body has no steps" unless body.is_a?(Hash) && body["steps"].is_a?(Array)

      body["steps"].each do |step|
        raise "a step is no object" unless step.is_a?(Hash)

        step = step.dup
        here = (step.delete("attempt") || attempt) == attempt
        here &&= (step.delete("run") || run) == run
        perform_step(queue, *step.first) if here
      end
    end

    def perform_step(queue, kind, value)
      case kind
      when "insert" then sql("INSERT INTO effects (q, id, label) VALUES ($1, $2, $3)", queue, provider_job_id, value)
      when "sql" then sql(value)
      when "push" then sql("SELECT queue_post(NULL::text, $1::jsonb)", JSON.generate(value))
      when "note" then own("INSERT INTO notes (q, id, label) VALUES ($1, $2, $3)", queue, provider_job_id, value)
      when "wait" then sleep 0.02 while own("SELECT 1 FROM gates WHERE name = $1", value).empty?
      when "sleep" then sleep value
      when "throw" then raise value
      when "permanent" then raise ActiveJob::QueueAdapters::QueueAdapter::PermanentError, value
      when "weird" then raise "a NUL \0 and \xED\xA0\x80"
      when "crash" then Process.kill("KILL", Process.pid)
      else raise "no step #{kind}"
      end
    end
  end

  load File.expand_path("../exe/activejob-queue", __dir__)
end

# The bodies of the cases are no jobs of ActiveJob: each is the argument of one.
Worker::Performer.prepend(Module.new do
  private
    def perform(message)
      job = StepsJob.new(message["body"], message["queue"], message["claim_count"].to_i)
      super(message.merge("body" => JSON.generate(job.serialize)))
    end
end)
