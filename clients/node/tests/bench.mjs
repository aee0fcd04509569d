#!/usr/bin/env node
// Jobs that do nothing, per second, of one process: this library, graphile-worker, pg-boss;
// from a push to the start of its job; and what an idle worker costs.
//
//   npm install --no-save graphile-worker pg-boss
//   node tests/bench.mjs [jobs [ours|graphile|pgBoss|latency|idle|memory...]]
//
// PGHOST and so on name the database, as a superuser: the peers create their schemas.

import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Queue } from '../dist/index.js'

const jobs = Number(process.argv[2] ?? 5000)
const db = new pg.Pool({ max: 2, application_name: 'bench' })
const value = async (text, values) => Object.values((await db.query(text, values)).rows[0])[0]

// Runs start(done, concurrency), and measures from the first job to the last one
async function measure (name, concurrency, prepare, start, n = jobs) {
  await prepare(n)
  let left = n
  let first
  let finish
  const finished = new Promise(resolve => { finish = resolve })
  const stop = await start(() => {
    first ??= performance.now()
    if (--left === 0) finish()
  }, concurrency)
  await finished
  await stop() // completes what it has done
  const seconds = (performance.now() - first) / 1000
  console.log(`${name}, ${concurrency} at a time: ${Math.round(n / seconds)} jobs/s`)
}

const ours = {
  prepare: async n => {
    await db.query("SELECT queue_drop('bench')")
    await db.query("SELECT queue_create('bench', '{\"_max_claim_count\": 12}')")
    await db.query("SELECT queue_push_batch('bench', array_agg(to_jsonb(n))) FROM generate_series(1, $1::int) n GROUP BY n / 1000", [n])
  },
  start: async (done, concurrency) => {
    const queue = new Queue({ signals: false })
    await queue.work('bench', { concurrency }, async () => { done() })
    return async () => {
      await queue.stop()
      const left = await value("SELECT total FROM queue_stats('bench')")
      if (left !== '0') throw new Error(`${left} messages are left`)
    }
  }
}

// What a loop over queue_step does, over one connection
const bare = {
  prepare: ours.prepare,
  start: async (done, concurrency) => {
    const client = new pg.Client()
    await client.connect()
    let claim = null
    for (;;) {
      const { rows } = await client.query({
        name: 'step',
        text: 'SELECT id, body, claim_id, claim_count FROM queue_step($1::text, $2::text, "limit" => $3::int)',
        values: ['bench', claim, concurrency]
      })
      if (rows.length === 0) break
      claim = rows[0].claim_id
      for (const _ of rows) done()
    }
    return async () => { await client.end() }
  }
}

const oursTx = {
  prepare: ours.prepare,
  start: async (done, concurrency) => {
    const queue = new Queue({ signals: false, connections: Math.max(concurrency + 1, 2) })
    await queue.work('bench', { concurrency }, async (job, { tx }) => { await tx.query('SELECT 1'); done() })
    return async () => { await queue.stop() }
  }
}

async function graphile () {
  const { run, runMigrations } = await import('graphile-worker').catch(() => ({}))
  if (!run) return console.log('graphile-worker is not installed')
  const quiet = (await import('graphile-worker')).Logger
  const logger = new quiet(() => () => {})
  const pool = () => new pg.Pool({ max: 30 })
  const peer = {
    prepare: async n => {
      const pgPool = pool()
      await runMigrations({ pgPool, logger })
      await db.query("SELECT count(graphile_worker.add_job('bench', to_json(n))) FROM generate_series(1, $1::int) n", [n])
      await pgPool.end()
    },
    start: async (done, concurrency) => {
      const pgPool = pool()
      const runner = await run({ pgPool, concurrency, logger, noHandleSignals: true, pollInterval: 1000, taskList: { bench: async () => { done() } } })
      return async () => { await runner.stop(); await pgPool.end() }
    }
  }
  for (const concurrency of [1, 20]) await measure('graphile-worker', concurrency, peer.prepare, peer.start)
}

async function pgBoss () {
  const PgBoss = (await import('pg-boss').catch(() => ({}))).default
  if (!PgBoss) return console.log('pg-boss is not installed')
  const open = async () => {
    const boss = new PgBoss({ connectionString: 'postgres://', max: 10 })
    boss.on('error', console.error)
    await boss.start()
    return boss
  }
  const peer = {
    prepare: async n => {
      const boss = await open()
      await boss.createQueue('bench')
      for (let i = 0; i < n; i += 1000) {
        await boss.insert(Array.from({ length: Math.min(1000, n - i) }, () => ({ name: 'bench', data: {} })))
      }
      await boss.stop({ graceful: false })
    },
    start: async (done, batchSize) => {
      const boss = await open()
      await boss.work('bench', { batchSize, pollingIntervalSeconds: 0.5 }, async list => { for (const _ of list) done() })
      return async () => { await boss.stop({ graceful: true }) }
    }
  }
  // It looks twice a second, so this takes long.
  await measure('pg-boss', 1, peer.prepare, peer.start, 20)
  await measure('pg-boss', 20, peer.prepare, peer.start, 200)
}

async function latency () {
  const queue = new Queue({ signals: false })
  const times = []
  let arrived
  await queue.create('bench_latency')
  await queue.work('bench_latency', async () => { arrived(performance.now()) })
  await sleep(500)
  for (let i = 0; i < 200; i++) {
    const start = performance.now()
    const arrival = new Promise(resolve => { arrived = resolve })
    await queue.push('bench_latency', i)
    times.push(await arrival - start)
    await sleep(20)
  }
  await queue.stop()
  times.sort((a, b) => a - b)
  console.log(`push to start: p50 ${times[100].toFixed(1)} ms, p99 ${times[198].toFixed(1)} ms`)
}

async function idle (seconds = 20) {
  const queue = new Queue({ signals: false, application_name: 'idle' })
  for (let i = 0; i < 20; i++) {
    await queue.create(`bench_idle${i}`)
    await queue.work(`bench_idle${i}`, () => {})
  }
  await sleep(12000) // connections of the pool that are not needed are closed after 10 s
  const before = process.cpuUsage()
  await sleep(seconds * 1000)
  const { user, system } = process.cpuUsage(before)
  const connections = await value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idle'")
  console.log(`idle with 20 queues: ${((user + system) / 1e4 / seconds).toFixed(2)} % CPU, ${connections} connections`)
  await queue.stop()
}

// What the process needs, as jobs go by.  The garbage is collected first: node --expose-gc
async function memory (n = jobs) {
  await ours.prepare(n)
  const queue = new Queue({ signals: false })
  let count = 0
  let finish
  const finished = new Promise(resolve => { finish = resolve })
  await queue.work('bench', { concurrency: 20 }, async () => {
    if (++count % (n / 10) === 0) {
      globalThis.gc?.()
      const { heapUsed, rss } = process.memoryUsage()
      console.log(`${count} jobs: heap ${(heapUsed / 1e6).toFixed(1)} MB, resident ${(rss / 1e6).toFixed(0)} MB`)
    }
    if (count === n) finish()
  })
  await finished
  await queue.stop()
}

const parts = {
  ours: async () => {
    for (const concurrency of [1, 20]) {
      await measure('queue_step', concurrency, bare.prepare, bare.start)
      await measure('pg-claim-queue', concurrency, ours.prepare, ours.start)
    }
    for (const concurrency of [1, 20]) await measure('pg-claim-queue with tx', concurrency, oursTx.prepare, oursTx.start)
  },
  graphile,
  pgBoss,
  latency,
  idle,
  memory
}
const wanted = process.argv.slice(3)
for (const name of wanted.length > 0 ? wanted : ['ours', 'graphile', 'pgBoss', 'latency', 'idle']) await parts[name]()
await db.end()
