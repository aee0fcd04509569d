#!/usr/bin/env node
// What test/bench/workers measures of this library and its peers, one figure at a time:
//
//   node tests/bench.mjs rate NAME CONCURRENCY JOBS   jobs per second that do nothing
//   node tests/bench.mjs latency PUSHES               p50 and p99 from a push to its job, ms
//   node tests/bench.mjs idle SECONDS                 CPU of this process and of its sessions
//                                                     in percent, connections
//   node tests/bench.mjs memory JOBS                  after each tenth: jobs, resident MB
//
// NAME is a key of workers, below; the peers are found if npm has installed them.  PGHOST
// and so on name the database, as a superuser: the peers create their schemas.

import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Queue } from '../dist/index.js'

const db = new pg.Pool({ max: 1, application_name: 'bench' })
const value = async (text, values) => Object.values((await db.query(text, values)).rows[0])[0]

// Each worker fills its queue with the numbers from 1 to n; start(done, concurrency, n) has
// done(number) called as each job begins, and returns what ends the work and tells how many
// are left.
const ours = {
  async prepare (n) {
    await db.query("SELECT queue_drop('bench')")
    await db.query("SELECT queue_create('bench', '{\"_max_claim_count\": 12}')")
    for (let i = 0; i < n; i += 10000) {
      await db.query("SELECT queue_push_batch('bench', array_agg(to_jsonb(i))) FROM generate_series($1::int, $2::int) i GROUP BY i / 1000",
        [i + 1, Math.min(i + 10000, n)])
    }
  },
  async start (done, concurrency, n, handler = async job => { done(job.body) }, connections) {
    const queue = new Queue({ signals: false, connections })
    await queue.work('bench', { concurrency }, handler)
    return async () => {
      await queue.stop()
      return await ours.left()
    }
  },
  left: async () => await value("SELECT total FROM queue_stats('bench')")
}

// Each job takes a transaction.
const oursTx = {
  ...ours,
  start: async (done, concurrency, n) => await ours.start(done, concurrency, n, async (job, { tx }) => {
    await tx.query('SELECT 1')
    done(job.body)
  }, concurrency + 1)
}

// What a loop over queue_step does, over one connection
const bare = {
  ...ours,
  async start (done, concurrency) {
    const client = new pg.Client()
    await client.connect()
    for (let claim = null, rows; rows?.length !== 0; claim = rows[0]?.claim_id) {
      ({ rows } = await client.query({
        name: 'step',
        text: 'SELECT id, body, claim_id, claim_count FROM queue_step($1::text, $2::text, "limit" => $3::int)',
        values: ['bench', claim, concurrency]
      }))
      for (const { body } of rows) done(body)
    }
    await client.end()
    return ours.left
  }
}

// Without its local queue, whose jobs wait for four hours if the process is killed, unless
// size says how large that is.  What is done is completed in batches, its fastest setting.
function graphile (size) {
  return {
    async prepare (n) {
      const { runMigrations, Logger } = await import('graphile-worker')
      await runMigrations({ connectionString: 'postgres://', logger: new Logger(() => () => {}) })
      await db.query('TRUNCATE graphile_worker._private_jobs')
      await db.query("SELECT count(graphile_worker.add_job('bench', to_json(i))) FROM generate_series(1, $1::int) i", [n])
    },
    async start (done, concurrency) {
      const { run, Logger } = await import('graphile-worker')
      const runner = await run({
        logger: new Logger(() => () => {}),
        noHandleSignals: true,
        taskList: { bench: async body => { done(body) } },
        preset: {
          worker: {
            connectionString: 'postgres://',
            concurrentJobs: concurrency,
            maxPoolSize: concurrency + 5,
            completeJobBatchDelay: 0,
            ...size && { localQueue: { size } }
          }
        }
      })
      return async () => {
        await runner.stop()
        return await value('SELECT count(*) FROM graphile_worker._private_jobs')
      }
    }
  }
}

// Its calls in a loop, since its workers look twice a second
const pgBoss = {
  async prepare (n) {
    const boss = await pgBoss.open()
    await boss.createQueue('bench')
    await db.query('TRUNCATE pgboss.job')
    for (let i = 0; i < n; i += 1000) {
      await boss.insert('bench', Array.from({ length: Math.min(1000, n - i) }, (_, j) => ({ data: { n: i + j + 1 } })))
    }
    await db.query('VACUUM ANALYZE pgboss.job')
    await boss.stop({ graceful: false })
  },
  async open () {
    const { PgBoss } = await import('pg-boss')
    const boss = new PgBoss({ connectionString: 'postgres://', schedule: false, supervise: false })
    boss.on('error', error => { throw error })
    return await boss.start()
  },
  async start (done, batchSize) {
    const boss = await pgBoss.open()
    for (let jobs; jobs?.length !== 0;) {
      jobs = await boss.fetch('bench', { batchSize })
      for (const { data } of jobs) done(data.n)
      if (jobs.length > 0) await boss.complete('bench', jobs.map(job => job.id))
    }
    await boss.stop({ graceful: false })
    return async () => await value("SELECT count(*) FROM pgboss.job WHERE state <> 'completed'")
  }
}

const workers = { ours, oursTx, bare, graphile: graphile(), graphileLocal: graphile(500), pgBoss }

// From the first job to the last one.  Each must be done once, and none left.
async function rate (name, concurrency, n) {
  const { prepare, start } = workers[name]
  await prepare(n)
  await db.query('CHECKPOINT')
  const seen = new Uint8Array(n + 1)
  let left = n
  let first
  let last
  let finish
  const finished = new Promise(resolve => { finish = resolve })
  const stop = await start(i => {
    first ??= performance.now()
    if (seen[i]++ > 0) throw new Error(`job ${i} was done twice`)
    if (--left > 0) return
    last = performance.now()
    finish()
  }, concurrency, n)
  await finished
  const remaining = await stop()
  if (remaining !== '0') throw new Error(`${name}: ${remaining} messages are left`)
  console.log((n / (last - first) * 1000).toFixed(0))
}

async function latency (pushes) {
  const queue = new Queue({ signals: false })
  const times = []
  let arrived
  await queue.create('bench_latency')
  await queue.work('bench_latency', async () => { arrived(performance.now()) })
  await sleep(500)
  for (let i = -10; i < pushes; i++) {
    const arrival = new Promise(resolve => { arrived = resolve })
    const start = performance.now()
    await queue.push('bench_latency', i)
    const end = await arrival
    if (i >= 0) times.push(end - start)
    await sleep(20)
  }
  await queue.stop()
  times.sort((a, b) => a - b)
  const quantile = p => times[Math.ceil(p * pushes) - 1].toFixed(2)
  console.log(quantile(0.5), quantile(0.99))
}

// Seconds of CPU time of a process, from Linux
function cpuOf (pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/.*\) /, '').split(' ')
  return (Number(fields[11]) + Number(fields[12])) / 100
}

async function idle (seconds) {
  const queue = new Queue({ signals: false, application_name: 'idle' })
  for (let i = 0; i < 20; i++) {
    await queue.create(`bench_idle${i}`)
    await queue.work(`bench_idle${i}`, () => {})
  }
  await sleep(12000) // connections that are not needed are closed after 10 s
  const sessions = async () => (await db.query(
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'idle' ORDER BY pid")).rows.map(row => row.pid)
  const pids = await sessions()
  const total = () => pids.reduce((sum, pid) => sum + cpuOf(pid), 0)
  const server = total()
  const before = process.cpuUsage()
  await sleep(seconds * 1000)
  const { user, system } = process.cpuUsage(before)
  const after = await sessions()
  if (String(after) !== String(pids)) throw new Error('its connections have changed')
  console.log(((user + system) / 1e4 / seconds).toFixed(2), ((total() - server) / seconds * 100).toFixed(2), pids.length)
  await queue.stop()
}

async function memory (n) {
  await ours.prepare(n)
  let count = 0
  let finish
  const finished = new Promise(resolve => { finish = resolve })
  const stop = await ours.start(null, 20, n, async () => {
    if (++count % (n / 10) === 0) console.log(count, (process.memoryUsage.rss() / 1e6).toFixed(1))
    if (count === n) finish()
  })
  await finished
  const remaining = await stop()
  if (remaining !== '0') throw new Error(`${remaining} messages are left`)
}

const [part, ...args] = process.argv.slice(2)
const numbers = args.map(arg => workers[arg] ? arg : Number(arg))
await { rate, latency, idle, memory }[part](...numbers)
await db.end()
