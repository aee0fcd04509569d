// test/bench/graphile_worker/worker.js - a worker whose tasks do nothing
//
// Prints "ready", and ends in its own time at SIGTERM.  While more than 2000
// jobs wait it holds the lock that producers take (see produce*.sql): without
// that they would take the CPU from it and leave a backlog that only grows.
// With --schema-only it only installs its schema.

const { run, runMigrations, Logger } = require('graphile-worker')
const { Client } = require('pg')

const preset = {
  worker: {
    connectionString: 'postgres:///' + process.env.PGDATABASE,
    concurrentJobs: 24,
    maxPoolSize: 25,
    gracefulShutdownAbortTimeout: 2500,
    localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0
  }
}
const logger = new Logger(() => (level, message) => {
  if (level === 'error') console.error(message)
})

async function work () {
  const gate = new Client(preset.worker)
  await gate.connect()
  const first = await pushed(gate)
  let done = 0
  let closed = false
  const runner = await run({ preset, logger, taskList: { bench: async () => {} } })
  runner.events.on('job:success', () => { done++ })

  console.log('ready')

  let working = true
  runner.promise.finally(() => { working = false })
  while (working) {
    const many = await pushed(gate) - first - done > 2000
    if (many !== closed) {
      await gate.query(`SELECT pg_advisory_${many ? '' : 'un'}lock(1)`)
    }
    closed = many
    await new Promise(resolve => setTimeout(resolve, 10))
  }
  await gate.end()
}

async function pushed (db) {
  const answer = await db.query(`SELECT CASE WHEN is_called THEN last_value
    ELSE last_value - 1 END AS n FROM graphile_worker.jobs_id_seq1`)
  return Number(answer.rows[0].n)
}

const schema = process.argv[2] === '--schema-only'
;(schema ? runMigrations({ preset, logger }) : work()).catch(error => {
  console.error(error)
  process.exit(1)
})
