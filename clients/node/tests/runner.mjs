// The runner of ../../conformance: works as its argument says, until it is told to stop.

import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { PermanentError, Queue, Snooze } from '../dist/index.js'

const config = JSON.parse(process.argv[2])
const { work, ...options } = config
const queue = new Queue(options)
const own = new pg.Pool({ application_name: 'runner', max: 1 })
own.on('error', () => {})
const runs = new Map() // of each message in this process

// On the connection of the runner, which comes back after an error
async function outside (text, values) {
  for (;;) {
    try {
      return await own.query(text, values)
    } catch (error) {
      if (process.exitCode !== undefined) throw error
      await sleep(100)
    }
  }
}

const steps = {
  insert: async (label, { job, tx }) => {
    await tx.query('INSERT INTO effects (q, id, label) VALUES ($1, $2, $3)', [job.queue, job.id, label])
  },
  sql: async (statement, { tx }) => { await tx.query(statement) },
  push: async (messages, { tx }) => {
    for (const { queue: q, body, ...more } of messages) await queue.push(q, body, { ...more, tx })
  },
  push_alone: async messages => {
    for (const { queue: q, body, ...more } of messages) await queue.push(q, body, more)
  },
  note: async (label, { job }) => {
    await outside('INSERT INTO notes (q, id, label) VALUES ($1, $2, $3)', [job.queue, job.id, label])
  },
  wait: async (gate, { signal }) => {
    while ((await outside('SELECT FROM gates WHERE name = $1', [gate])).rowCount === 0) {
      await sleep(20, undefined, { signal })
    }
  },
  sleep: async (seconds, { signal }) => { await sleep(seconds * 1000, undefined, { signal }) },
  throw: text => { throw new Error(text) },
  permanent: text => { throw new PermanentError(text) },
  weird: what => {
    if (what === 'error') throw new Error('\0 \ud800')
    return '\0'
  },
  snooze: seconds => { throw new Snooze(seconds) },
  result: value => value,
  crash: () => process.kill(process.pid, 'SIGKILL')
}

async function handle (job, context) {
  const run = (runs.get(job.id) ?? 0) + 1
  let result
  runs.set(job.id, run)
  if (!Array.isArray(job.body?.steps)) throw new Error('the body has no steps')
  for (const step of job.body.steps) {
    if ((step.attempt ?? job.attempt) !== job.attempt || (step.run ?? run) !== run) continue
    const name = Object.keys(step).find(key => Object.hasOwn(steps, key))
    if (!name) throw new Error('no such step')
    result = (await steps[name](step[name], { job, ...context })) ?? result
  }
  return result
}

queue.on('stopped', () => { own.end() })
for (const q of Object.keys(work)) await queue.work(q, work[q], handle)
