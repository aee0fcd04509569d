# frozen_string_literal: true

# For ActiveJob's own tests, which expect that a job is performed as soon as it is
# enqueued: performs what the server has of it.

require "activejob-queue"

ActiveJob::QueueAdapters::QueueAdapter.prepend(Module.new do
  private
    def post(jobs)
      count = super
      jobs.each do |job, _|
        message = [job.queue_name, job.provider_job_id]
        body = self.class.query(connection, "SELECT body FROM message_get($1, $2)", *message)[0]["body"]
        self.class.query(connection, "SELECT message_delete($1, $2)", *message)
        ActiveJob::Base.execute(JSON.parse(body))
      end
      count
    end
end)

# The tests look at this class, which would load a gem.
ActiveJob::QueueAdapters.send(:remove_const, :SneakersAdapter)
ActiveJob::QueueAdapters::SneakersAdapter = Class.new

ActiveJob::Base.queue_adapter = :queue
connection = PG.connect
ActiveJob::Base.queue_adapter.connection = connection
# Tests that set the adapter again get a new object.
ActiveJob::QueueAdapters::QueueAdapter.class_eval do
  define_method(:connection) { connection }
end
