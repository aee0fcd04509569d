// test/bench/pg_boss/jobs.js - senders, and a process whose jobs do nothing
//
//	node jobs.js schema
//	node jobs.js SCRIPT SENDERS N SECONDS
//
// The second prints how many jobs were sent, how many of them waited when the
// time was over, and the time.  The process that completes jobs is a child of
// that which sends them, and tells it how many it has done.

const { fork } = require('node:child_process')
const { PgBoss } = require('pg-boss')

const queue = 'bench'
const [command, ...numbers] = process.argv.slice(2)
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))

// Only what is measured: no schedules, and no look at all jobs meanwhile.
async function start (max) {
  const boss = new PgBoss({
    connectionString: 'postgres:///' + process.env.PGDATABASE,
    max,
    schedule: false,
    supervise: false
  })
  boss.on('error', error => { throw error })
  await boss.start()
  return boss
}

async function schema () {
  const boss = await start(1)
  await boss.createQueue(queue)
  await boss.stop()
}

async function complete () {
  const boss = await start(2)
  let stopping = false
  process.on('message', () => { stopping = true })
  process.send(0)
  const worker = async () => {
    for (;;) {
      const jobs = await boss.fetch(queue, { batchSize: 100 })
      if (jobs.length > 0) {
        await boss.complete(queue, jobs.map(job => job.id))
        process.send(jobs.length)
      } else if (stopping) {
        return
      }
      // An empty fetch costs as much as a job: let some come together.
      if (jobs.length < 100) await sleep(10)
    }
  }
  await Promise.all([worker(), worker()])
  await boss.stop()
  process.disconnect()
}

async function send (script, senders, n, seconds) {
  const data = JSON.parse(process.env.BENCH_BODY)
  const boss = await start(senders)
  const pushOnly = script === 'produce_batch'
  let sent = 0
  let done = 0
  let child
  let ended = 0
  if (!pushOnly) {
    child = fork(__filename, ['complete'])
    ended = new Promise(resolve => child.once('exit', resolve))
    child.on('message', jobs => { done += jobs })
    await new Promise(resolve => child.once('message', resolve))
  }

  const begin = performance.now()
  const sender = async () => {
    while (performance.now() - begin < seconds * 1000) {
      if (!pushOnly && sent - done > 2000) {
        await sleep(1)
      } else if (n === 1) {
        await boss.send(queue, data)
        sent++
      } else {
        await boss.insert(queue, Array(n).fill({ data }))
        sent += n
      }
    }
  }
  await Promise.all(Array(senders).fill().map(sender))
  const time = (performance.now() - begin) / 1000
  const left = sent - done
  // What is left, so that the cost of all work is counted.
  if (child) child.send('stop')
  const status = await ended
  await boss.stop()
  if (status !== 0 || (child && done !== sent)) {
    throw new Error(`${sent} sent, ${done} done`)
  }
  console.log(sent, left, time)
}

const run = { schema, complete }[command] ||
  (() => send(command, ...numbers.map(Number)))
run().catch(error => {
  console.error(error)
  process.exit(1)
})
