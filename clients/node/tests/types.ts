// What does not compile, and what does: tsc checks that each marked line is an error.

import { Queue, type Client } from '../dist/index.js'

interface Jobs {
  mail: { to: string }
  resize: { file: string, width: number }
}

export async function check (queue: Queue<Jobs>, tx: Client): Promise<void> {
  await queue.push('mail', { to: 'ann@example.org' }, { tx, delay: 5 })
  // @ts-expect-error: a wrong payload
  await queue.push('mail', { too: 'ann@example.org' })
  // @ts-expect-error: a queue that there is not
  await queue.push('fax', {})
  // @ts-expect-error: an option that there is not
  await queue.push('mail', { to: 'ann@example.org' }, { later: 5 })
  await queue.work('resize', { concurrency: 20 }, async (job, { signal, tx }) => {
    const width: number = job.body.width
    // @ts-expect-error: not in the payload
    const height: number = job.body.height
    await tx.query('SELECT $1', [width, height, signal.aborted])
  })
  await new Queue().push('anything', [1, 2])
}
