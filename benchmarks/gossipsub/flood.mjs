// The same load over js gossipsub: signed messages through a given graph, all nodes in this process.
//
// Standard input has one JSON object: {nodes, edges: [[a, b]], warm_up, messages, size, window,
// publishers, timeout_ms}. Standard output gets one: {expected, delivered, cpu_us, wall_ms, versions}.
// Every node subscribes; a message counts once per node other than its publisher.

import { readFileSync } from 'node:fs'

import { gossipsub, StrictSign } from '@libp2p/gossipsub'
import { identify } from '@libp2p/identify'
import { noise } from '@libp2p/noise'
import { tcp } from '@libp2p/tcp'
import { yamux } from '@libp2p/yamux'
import { createLibp2p } from 'libp2p'

const TOPIC = 'benchmark'
const POLL_MS = 20
const JOIN_MS_MAX = 30_000

const settings = JSON.parse(readFileSync(0, 'utf8'))
const degree = (2 * settings.edges.length) / settings.nodes

function makeNode () {
  return createLibp2p({
    addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    // All peers share one address: what limits an address would cut the network off from itself.
    connectionManager: {
      inboundConnectionThreshold: Infinity,
      maxIncomingPendingConnections: settings.nodes ** 2
    },
    connectionMonitor: { enabled: false },
    services: {
      identify: identify(),
      pubsub: gossipsub({
        globalSignaturePolicy: StrictSign,
        // Every link of the graph is in the mesh, and nothing else is.
        D: degree,
        Dlo: degree,
        Dhi: 2 * degree,
        Dout: Math.floor(degree / 2),
        floodPublish: false,
        scoreParams: { IPColocationFactorWeight: 0, behaviourPenaltyWeight: 0 },
        maxInboundStreams: settings.nodes,
        maxOutboundStreams: settings.nodes
      })
    }
  })
}

async function until (condition, timeoutMs) {
  const end = performance.now() + timeoutMs
  while (!condition()) {
    if (performance.now() > end) return false
    await new Promise(resolve => setTimeout(resolve, POLL_MS))
  }
  return true
}

async function connect (nodes) {
  const meshed = new Map(nodes.map(node => [node, new Set()]))
  for (const node of nodes) {
    const pubsub = node.services.pubsub
    pubsub.addEventListener('gossipsub:graft', ({ detail }) => meshed.get(node).add(detail.peerId))
    pubsub.addEventListener('gossipsub:prune', ({ detail }) => meshed.get(node).delete(detail.peerId))
    pubsub.subscribe(TOPIC)
  }
  for (const [a, b] of settings.edges) await nodes[a].dial(nodes[b].getMultiaddrs())
  const ready = () => [...meshed.values()].every(peers => peers.size === degree)
  if (!await until(ready, JOIN_MS_MAX)) {
    const sizes = [...meshed.values()].map(peers => peers.size)
    throw new Error(`the mesh is not the graph: ${sizes} neighbours`)
  }
}

async function flood (nodes) {
  const others = nodes.length - 1
  const payload = new Uint8Array(settings.size)
  let sent = 0
  let delivered = 0
  let wanted = Infinity
  let wake = () => {}
  for (const node of nodes) {
    node.services.pubsub.addEventListener('message', ({ detail }) => {
      if (detail.from.equals(node.peerId)) return
      delivered += 1
      if (delivered >= wanted) wake()
    })
  }

  // False if so many deliveries did not come in time.
  async function atLeast (count, endMs) {
    if (delivered >= count) return true
    let timer
    const come = new Promise(resolve => {
      wanted = count
      wake = () => resolve(true)
      timer = setTimeout(() => resolve(false), endMs - performance.now())
    })
    const done = await come
    clearTimeout(timer)
    wanted = Infinity
    return done
  }

  // Publishes so many messages, of which at most a window's worth is under way at a time.
  async function publish (messages) {
    const endMs = performance.now() + settings.timeout_ms
    for (let left = messages; left > 0; left -= 1) {
      if (!await atLeast((sent - settings.window + 1) * others, endMs)) return
      await nodes[sent % settings.publishers].services.pubsub.publish(TOPIC, payload)
      sent += 1
    }
    await atLeast(sent * others, endMs)
  }

  await publish(settings.warm_up)
  const before = { sent, delivered }
  const cpu = process.cpuUsage()
  const beginMs = performance.now()
  await publish(settings.messages)
  const { user, system } = process.cpuUsage(cpu)
  return {
    expected: (sent - before.sent) * others,
    delivered: delivered - before.delivered,
    cpu_us: user + system,
    wall_ms: performance.now() - beginMs
  }
}

function versionOf (name) {
  const file = new URL(`node_modules/${name}/package.json`, import.meta.url)
  return JSON.parse(readFileSync(file, 'utf8')).version
}

const nodes = await Promise.all(Array.from({ length: settings.nodes }, makeNode))
await connect(nodes)
const result = await flood(nodes)
const versions = { node: process.versions.node, gossipsub: versionOf('@libp2p/gossipsub'), libp2p: versionOf('libp2p') }
console.log(JSON.stringify({ ...result, versions }))
process.exit(0)
