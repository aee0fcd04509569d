# frozen_string_literal: true

require "json"
require "pg"
require "active_job"

module ActiveJob
  module QueueAdapters
    # = Active Job adapter for the PostgreSQL extension "queue"
    #
    #   ActiveJob::Base.queue_adapter = :queue
    #
    # A job is a message of the queue that it names.  It is pushed over the
    # connection of ActiveRecord, if that is loaded, and so in the transaction that
    # is open there, if any; or over the connection that the application gives:
    #
    #   ActiveJob::Base.queue_adapter.connection = PG.connect
    #
    # That is a PG::Connection, a connection of ActiveRecord, or a Proc that returns
    # one of these.  The Proc is called for each push.
    #
    # If a job has the method +group_key+, the message is in the group that it returns.
    class QueueAdapter < (defined?(AbstractAdapter) ? AbstractAdapter : Object)
      # Raised by a job that no retry mends: its message becomes a dead letter.
      PermanentError = Class.new(StandardError)

      attr_writer :connection

      def initialize(connection: nil)
        super()
        @connection = connection
      end

      def enqueue(job)
        enqueue_all([job])
      end

      def enqueue_at(job, timestamp)
        post([[job, timestamp]])
      end

      # Pushes all of these jobs, or none; returns how many.
      def enqueue_all(jobs)
        post(jobs.map { |job| [job, job.scheduled_at] })
      end

      # The jobs are pushed in the transaction that is open, not after it.
      def enqueue_after_transaction_commit?
        false
      end

      # The connection for the next push: in a worker, that of the worker
      def connection
        given = Thread.current.thread_variable_get(:activejob_queue_connection) || @connection
        given = given.call if given.respond_to?(:call)
        given || self.class.active_record ||
          raise(ArgumentError, "The queue adapter has no connection: load ActiveRecord, or give one " \
                               "with ActiveJob::Base.queue_adapter.connection = PG.connect")
      end

      class << self
        # What the statement returns, as an array of hashes
        def query(connection, sql, *values)
          return connection.exec_params(sql, values).to_a if connection.is_a?(PG::Connection)
          unless connection.adapter_name.match?(/postg/i)
            raise ArgumentError, "The queue adapter needs PostgreSQL, not #{connection.adapter_name}"
          end

          # Unlike select_all, this does not look into the query cache.
          connection.exec_query(sql, "Queue", values.map do |value|
            ActiveRecord::Relation::QueryAttribute.new("value", value, ActiveRecord::Type::Value.new)
          end).to_a
        end

        def active_record
          return unless defined?(ActiveRecord::Base)

          base = ActiveRecord::Base
          base.respond_to?(:lease_connection) ? base.lease_connection : base.connection
        end

        # Of ActiveJob's priorities 0 comes first, of the extension's 9.  A job without one
        # is in the middle.
        def priority(job)
          (9 - (job.priority || 5).to_i).clamp(0, 9)
        end
      end

      private
        def post(jobs)
          messages = jobs.map { |job, timestamp| message(job, timestamp) }
          ids = self.class.query(connection, "SELECT unnest(queue_post(NULL::text, $1::jsonb)) AS id",
                                 JSON.generate(messages))
          jobs.zip(ids) do |(job, _), row|
            job.provider_job_id = row["id"].to_i
            job.successfully_enqueued = true if job.respond_to?(:successfully_enqueued=)
          end
          jobs.size
        end

        def message(job, timestamp)
          message = { queue: job.queue_name, body: job.serialize, priority: self.class.priority(job) }
          # The server adds the delay to its own time, so it need not agree with that here.
          message[:delay] = [(timestamp.to_f - Time.now.to_f).ceil, 0].max if timestamp
          key = job.group_key if job.respond_to?(:group_key)
          message[:group_key] = key.to_s unless key.nil?
          message
        end
    end
  end
end
