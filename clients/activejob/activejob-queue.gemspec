# frozen_string_literal: true

Gem::Specification.new do |s|
  s.name = "activejob-queue"
  s.version = "1.0.0"
  s.summary = "Active Job adapter and worker for the PostgreSQL extension queue"
  s.license = "PostgreSQL"
  s.author = "The authors of the extension queue"
  s.files = ["README.md", "exe/activejob-queue", *Dir["lib/**/*.rb", base: __dir__]]
  s.bindir = "exe"
  s.executables = ["activejob-queue"]
  s.required_ruby_version = ">= 2.7"
  s.add_dependency "activejob", ">= 6.1"
  s.add_dependency "pg", ">= 1.1"
end
