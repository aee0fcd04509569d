# frozen_string_literal: true

# The job of test/figures, for its workers

ActiveJob::Base.queue_adapter = :queue
ActiveJob::Base.logger = Logger.new(nil)

class FigureJob < ActiveJob::Base
  def perform(_); end
end
