# frozen_string_literal: true

require "active_job/queue_adapters/queue_adapter"
