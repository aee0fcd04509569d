// What the library does beside the cases of ../../conformance.  PGHOST and so on name a
// database with the extension and a role with queue_producer and queue_consumer.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { test } from 'node:test'
import { promisify } from 'node:util'
import pg from 'pg'
import { PermanentError, Queue, RetryError, Snooze } from '../dist/index.js'

const run = promisify(execFile)
const CLI = new URL('../dist/cli.js', import.meta.url).pathname
let number = 0

// A queue of its own for a test, and what it logs
async function open (t, options, metadata = { _max_claim_count: 3, _retry_delay: 0, _retry_backoff: 1 }) {
  const lines = []
  const queue = new Queue({ log: line => lines.push(line), signals: false, stop: 0, ...options })
  const q = `node${++number}`
  t.after(() => queue.stop())
  await queue.create(q, metadata)
  return { queue, q, lines }
}

test('a push with every option', async t => {
  const { queue, q } = await open(t, { manual: true })
  const jobs = []
  const id = await queue.push(q, { n: 1 }, {
    ttl: 600, priority: 3, groupKey: 'ann', headers: { a: 'b' }, dedupKey: 'k'
  })
  assert.match(id, /^\d+$/)
  assert.equal(await queue.push(q, { n: 2 }, { dedupKey: 'k' }), null)
  assert.notEqual(await queue.push(q, 'late', { delay: 600 }), null)
  assert.notEqual(await queue.push(q, 'late', { at: new Date(Date.now() + 600000) }), null)
  await queue.work(q, job => { jobs.push(job) })
  assert.equal(await queue.drain(), 1)
  assert.deepEqual(jobs.map(j => [j.queue, j.id, j.body, j.attempt, j.priority, j.groupKey, j.headers]),
    [[q, id, { n: 1 }, 1, 3, 'ann', { a: 'b' }]])
  assert.ok(jobs[0].createdAt instanceof Date)
})

test('several pushes, and batches', async t => {
  const { queue, q } = await open(t, { manual: true })
  const order = []
  const batch = await queue.batch('all', { keepOpen: true })
  const ids = await queue.pushMany(q, [{ body: 'a', batch }, { body: 'b', batch, dedupKey: 'k' }, { body: 'c', dedupKey: 'k' }])
  assert.deepEqual(ids.map(id => id === null), [false, false, true])
  await queue.push(q, 'last', { after: batch })
  await queue.work(q, job => { order.push(job.body) })
  assert.equal(await queue.drain(), 2)
  assert.equal((await queue.batchStatus(batch)).finishedAt, null)
  await queue.closeBatch(batch)
  while (order.length < 3) await queue.drain() // the last one is free a moment later
  assert.deepEqual(order, ['a', 'b', 'last'])
  assert.equal((await queue.batchStatus(batch)).completed, 2)
})

test('a push in a transaction of the caller', async t => {
  const { queue, q } = await open(t, { manual: true })
  const client = new pg.Client()
  await client.connect()
  await client.query('BEGIN')
  await queue.push(q, 1, { tx: client })
  await queue.pushMany(q, [{ body: 2 }], { tx: client })
  await client.query('ROLLBACK')
  await client.end()
  await queue.work(q, () => {})
  assert.equal(await queue.drain(), 0)
})

test('a result is awaited', async t => {
  const { queue, q } = await open(t, {}, { _keep_finished: 600 })
  await queue.work(q, job => ({ twice: job.body * 2 }))
  const id = await queue.push(q, 21)
  assert.deepEqual(await queue.result(q, id, 60), { outcome: 'completed', result: { twice: 42 }, error: null })
  assert.equal(await queue.result(q, await queue.push(q, 1, { delay: 600 }), 0.01), null)
})

test('failures: retried with a delay, dead, put back', async t => {
  const { queue, q, lines } = await open(t, { manual: true })
  const attempts = []
  let mended = false
  queue.on('failed', (job, error, due) => attempts.push([job.body, job.attempt, due === null]))
  await queue.push(q, 'bad')
  await queue.push(q, 'worse')
  await queue.push(q, 'later')
  await queue.work(q, job => {
    if (job.body === 'later') throw new RetryError(600)
    if (mended) return
    if (job.body === 'worse') throw new PermanentError('no address')
    throw new Error('\0 no answer \ud800')
  })
  while (attempts.length < 5) await queue.drain()
  assert.deepEqual(attempts.filter(([body]) => body === 'bad'), [['bad', 1, false], ['bad', 2, false], ['bad', 3, true]])
  assert.deepEqual(attempts.filter(([body]) => body !== 'bad').sort(), [['later', 1, false], ['worse', 1, true]])
  let dead = []
  while (dead.length < 2) dead = await queue.deadLetters(q)
  assert.deepEqual(dead.map(d => [d.body, d.originQueue, d.reason, d.attempts]).sort(),
    [['bad', q, 'max_claim_count', 3], ['worse', q, 'buried', 1]])
  assert.match(dead.find(d => d.body === 'bad').lastError, /no answer/)
  assert.ok(lines.some(line => /attempt 3 failed, now a dead letter/.test(line)))
  mended = true
  assert.equal(await queue.redrive(q), 2)
  assert.equal(await queue.drain(), 2)
  assert.deepEqual(await queue.deadLetters(q), [])
})

test('snooze, progress, schema, around and headers', async t => {
  let wrapped = 0
  const { queue, q } = await open(t, {
    manual: true,
    headers: () => ({ traceparent: '00-1' }),
    around: async (job, next) => { wrapped++; assert.equal(job.headers.traceparent, '00-1'); return await next() }
  })
  const events = []
  queue.on('snoozed', (job, seconds) => events.push(seconds))
  queue.on('progress', (job, done, total) => events.push(`${done}/${total}`))
  await queue.push(q, 1)
  await queue.push(q, 'not a number')
  await queue.work(q, { schema: { parse: n => { if (typeof n !== 'number') throw new TypeError('no number'); return n } } },
    (job, { progress }) => { progress(1, 2); throw new Snooze(600) })
  while (wrapped < 1 || (await queue.deadLetters(q)).length < 1) await queue.drain()
  assert.deepEqual(events, ['1/2', 600])
})

test('an error of a listener is none of the job', async t => {
  const { queue, q, lines } = await open(t, { manual: true })
  queue.on('done', () => { throw new Error('oops') })
  await queue.push(q, 1)
  await queue.work(q, () => {})
  assert.equal(await queue.drain(), 1)
  assert.equal((await queue.status()).find(s => s.queue === q).free, 0)
  assert.ok(lines.some(line => /oops/.test(line)))
})

test('what only the caller can mend is thrown', async t => {
  const { queue, q } = await open(t, { manual: true })
  await assert.rejects(queue.push(q, undefined), TypeError)
  await assert.rejects(queue.push('no such name!', 1), { code: '22023' })
  await assert.rejects(new Queue({ database: 'no_such_database', log: () => {} }).work('x', () => {}), { code: '3D000' })
})

test('cancel', async t => {
  const { queue, q } = await open(t, { ttl: 3 })
  let begun
  const begin = new Promise(resolve => { begun = resolve })
  const aborted = once(queue.emitter, 'aborted')
  await queue.work(q, async (job, { signal }) => {
    begun()
    await once(signal, 'abort')
  })
  const id = await queue.push(q, 1)
  await begin
  assert.equal(await queue.cancel(q, id), 'pending')
  assert.equal((await aborted)[0].id, id)
  const late = await queue.push(q, 1, { delay: 600 })
  assert.equal(await queue.cancel(q, late), 'canceled')
  assert.equal(await queue.cancel(q, late), null)
})

test('the command', async t => {
  const { queue, q } = await open(t, { manual: true })
  await queue.push(q, 1)
  await queue.work(q, () => { throw new PermanentError('no') })
  await queue.drain()
  assert.match((await run(process.execPath, [CLI, 'status'])).stdout, new RegExp(`'${q}'`))
  assert.equal((await run(process.execPath, [CLI, 'redrive', q])).stdout, '1\n')
  await assert.rejects(run(process.execPath, [CLI, 'dance']), { code: 2 })
})
