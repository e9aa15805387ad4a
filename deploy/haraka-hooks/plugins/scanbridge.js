'use strict'
// Asks scanbridge about each mail over MTA Hooks (draft-degennaro-mta-hooks-01), and acts on the answer.
//
// The plugin asks about the sender and each recipient when the client names them, and about the mail when Haraka has
// received all of it. Haraka delivers the mail itself. Unless the answer is understood completely, the client receives
// 451 and keeps the mail, so no mail passes unscanned.

const crypto = require('node:crypto')
const fs = require('node:fs')
const http = require('node:http')
const https = require('node:https')
const { Transform } = require('node:stream')
const { URL } = require('node:url')
const DSN = require('haraka-dsn')

const STAGES = ['mail', 'rcpt', 'data']
const PROPERTIES = [
    '/stage', '/action', '/timestamp', '/protocol', '/rawMessage', '/envelope', '/queue', '/client', '/tls', '/auth',
    '/server',
]
const MAX_ANSWER = 1024 * 1024
const RENEW_MS = 60 * 1000 // before a registration ends
const LATER = [451, '4.3.0', 'The mail cannot be scanned now, try again later']

exports.register = function () {
    this.load()
    this.register_hook('mail', 'ask_mail')
    this.register_hook('rcpt', 'ask_rcpt')
    this.register_hook('data_post', 'ask_data')
    this.register_hook('queue', 'discard')
    this.register_hook('queue_outbound', 'discard')
}

exports.load = function () {
    const main = this.config.get('scanbridge.ini', () => this.load()).main
    const url = new URL(main.url || 'http://127.0.0.1:10028')
    const secure = url.protocol === 'https:'
    const options = { keepAlive: true, maxSockets: Infinity }
    if (main.ca_file) options.ca = fs.readFileSync(main.ca_file)
    this.scanner = {
        url,
        timeout: parseFloat(main.timeout || '28') * 1000,
        library: secure ? https : http,
        agent: secure ? new https.Agent(options) : new http.Agent(options),
        token: this.config.get('scanbridge-token', () => this.load()) || '',
        registration: null, // or the promise of one
    }
}

// Hooks

exports.ask_mail = function (next, connection) {
    this.ask('mail', next, connection)
}

exports.ask_rcpt = function (next, connection) {
    this.ask('rcpt', next, connection)
}

exports.ask_data = function (next, connection) {
    this.ask('data', next, connection)
}

// A mail that is dropped, or that is in scanbridge's quarantine, is not queued. The client gets the reply that Postfix would give.
exports.discard = function (next, connection) {
    if (!connection.transaction?.notes.scanbridge_discard) return next()
    next(OK, `2.0.0 Ok: queued as ${crypto.randomBytes(5).toString('hex').toUpperCase()}`)
}

exports.ask = async function (stage, next, connection) {
    const { transaction } = connection
    let wanted
    try {
        const found = await this.question(stage, connection)
        if (connection.transaction !== transaction) return next(DENYSOFT) // the client is gone
        wanted = read(found, transaction)
    } catch (error) {
        connection.logerror(this, `no decision: ${error.message}`)
        wanted = { action: 'reject', reply: LATER }
    }
    if (wanted.action === 'reject') {
        const [code, status, text] = wanted.reply
        const [, subject, detail] = status.split('.').map(Number)
        return next(code < 500 ? DENYSOFT : DENY, DSN.create(code, text, subject, detail))
    }
    if (wanted.action === 'discard') transaction.notes.scanbridge_discard = true
    else change(transaction, wanted)
    next()
}

// The question

exports.question = async function (stage, connection) {
    const id = crypto.randomUUID()
    const told = facts(stage, connection) // once: the same id must come with the same body
    const until = Date.now() + this.scanner.timeout
    for (let attempt = 0; ; attempt++) {
        const registration = await this.registered(until)
        let answer
        try {
            answer = await this.send('POST', registration.hookEndpoint, until, {
                fields: {
                    'X-MTA-Hooks-Registration': registration.registrationId,
                    'X-MTA-Hooks-Request-Id': id,
                },
                facts: told,
                mail: stage === 'data' ? connection.transaction.message_stream : null,
            })
        } catch (error) {
            if (attempt === 0 && error.code === 'ECONNRESET') continue // a connection that was kept too long
            throw error
        }
        if ([404, 410].includes(answer.status) && attempt === 0) {
            this.scanner.registration = null
            continue
        }
        if (answer.status === 204) return {}
        if (answer.status !== 200) throw new Error(`scanbridge answered ${answer.status}`)
        return JSON.parse(answer.body)
    }
}

function facts (stage, { transaction, remote, hello, tls, notes, local }) {
    const address = (one) => ({ address: one.original.replace(/^<([^]*)>$/, '$1') || null, parameters: {} })
    return {
        stage,
        action: 'accept',
        timestamp: new Date().toISOString(),
        protocol: { version: '1.0' },
        envelope: {
            from: address(transaction.mail_from),
            to: transaction.rcpt_to.map(address),
        },
        queue: { id: transaction.uuid },
        client: { ip: remote.ip, port: remote.port || null, ehlo: hello?.host || null, ptr: host_name(remote.host) },
        tls: tls?.enabled ? { version: tls.cipher?.version || 'TLS', cipher: tls.cipher?.name || '' } : null,
        auth: notes.auth_user ? { login: notes.auth_user, method: null } : null,
        server: { name: local?.host || null, ip: local?.ip || null, port: local?.port || null },
    }
}

function host_name (name) {
    return name && !['NXDOMAIN', 'DNSERROR', 'Unknown'].includes(name) ? name : null
}

exports.registered = async function (until) {
    const { scanner } = this
    if (!scanner.registration) {
        scanner.registration = this.introduce(until)
        scanner.registration.catch(() => { scanner.registration = null })
    }
    const found = await scanner.registration
    if (!found.expiresAt || Date.parse(found.expiresAt) - RENEW_MS > Date.now()) return found
    scanner.registration = null
    return this.introduce(until)
}

exports.introduce = async function (until) {
    const offered = await this.send('GET', '/.well-known/mta-hooks', until, {})
    if (offered.status !== 200) throw new Error(`scanbridge answered ${offered.status}`)
    const offer = JSON.parse(offered.body)
    const made = await this.send('POST', offer.endpoints.registration, until, {
        facts: {
            name: 'Haraka',
            version: '1.0',
            timeoutMs: this.scanner.timeout,
            serialization: 'json',
            inbound: { stages: STAGES, properties: PROPERTIES },
            outbound: null,
        },
    })
    if (made.status !== 201) throw new Error(`scanbridge refused the registration: ${made.status}`)
    return JSON.parse(made.body)
}

// HTTP. The mail is encoded while it is sent, so its length is not known in advance.

exports.send = function (method, path, until, { fields = {}, facts: told = null, mail = null }) {
    const { scanner } = this
    const target = new URL(path, scanner.url)
    if (target.origin !== scanner.url.origin) return Promise.reject(new Error('an endpoint is on another server'))
    return new Promise((resolve, reject) => {
        const headers = { Authorization: `Bearer ${scanner.token}`, ...fields }
        if (told) headers['Content-Type'] = 'application/json'
        const request = scanner.library.request(target, { method, headers, agent: scanner.agent })
        const fail = (error) => {
            clearTimeout(timer)
            mail?.unpipe?.()
            request.destroy()
            reject(error)
        }
        const timer = setTimeout(() => fail(new Error('scanbridge did not answer in time')), until - Date.now())
        request.on('error', fail)
        request.on('response', (response) => {
            const blocks = []
            let size = 0
            response.on('error', fail)
            response.on('aborted', () => fail(new Error('the answer is incomplete')))
            response.on('data', (block) => {
                size += block.length
                if (size > MAX_ANSWER) return fail(new Error('the answer is too long'))
                blocks.push(block)
            })
            response.on('end', () => {
                clearTimeout(timer)
                resolve({ status: response.statusCode, body: Buffer.concat(blocks).toString() })
            })
        })
        if (!mail) return request.end(told ? JSON.stringify(told) : undefined)
        const encoder = new Base64()
        encoder.on('error', fail)
        request.write(`${JSON.stringify(told).slice(0, -1)},"rawMessage":"`)
        encoder.pipe(request, { end: false })
        encoder.on('end', () => request.end('"}'))
        mail.pipe(encoder, { line_endings: '\r\n' })
    })
}

class Base64 extends Transform {
    constructor () {
        super()
        this.rest = Buffer.alloc(0)
    }

    _transform (block, _, done) {
        const data = Buffer.concat([this.rest, block])
        const end = data.length - (data.length % 3)
        this.rest = data.subarray(end)
        done(null, data.subarray(0, end).toString('base64'))
    }

    _flush (done) {
        done(null, this.rest.toString('base64'))
    }
}

// The answer: all of it is understood before anything is done.

function read (answer, transaction) {
    only(answer, ['set', 'add', 'delete'])
    const wanted = { action: 'accept', reply: null, added: [], values: [], fields: [], recipients: [] }
    for (const { path, value } of list(answer.set)) {
        if (path === '/action') wanted.action = value
        else if (path === '/response') wanted.reply = reply(value)
        else wanted.values.push([place(path, /^\/message\/headers\/(\d+)\/value$/, fields_of(transaction)), line(value)])
    }
    for (const { path, value, index } of list(answer.add)) {
        if (path !== '/message/headers' || index !== undefined) throw new Error(`${path} cannot be added`)
        if (!/^[!-9;-~]{1,200}$/.test(value.name)) throw new Error('a field has no name')
        wanted.added.push([value.name, line(value.value)])
    }
    for (const { path } of list(answer.delete)) {
        if (path.startsWith('/envelope/to/')) {
            wanted.recipients.push(place(path, /^\/envelope\/to\/(\d+)$/, transaction.rcpt_to))
        } else {
            wanted.fields.push(place(path, /^\/message\/headers\/(\d+)$/, fields_of(transaction)))
        }
    }
    if (!['accept', 'reject', 'discard'].includes(wanted.action)) throw new Error(`cannot ${wanted.action} a mail`)
    if (wanted.action === 'reject' && !wanted.reply) wanted.reply = [550, '5.7.1', 'The message was refused']
    if (wanted.action !== 'reject' && wanted.reply) throw new Error('a reply without a refusal')
    return wanted
}

function only (object, keys) {
    const more = Object.keys(object).filter((key) => !keys.includes(key))
    if (more.length) throw new Error(`${more[0]} is not understood`)
}

function list (found) {
    if (found === undefined) return []
    if (!Array.isArray(found)) throw new Error('the answer is not understood')
    return found
}

function line (text) {
    if (typeof text !== 'string' || /[\0\r\n]/.test(text)) throw new Error('a value is not one line')
    return text
}

function reply ({ code, enhancedCode, message }) {
    if (!Number.isInteger(code) || code < 400 || code > 599) throw new Error('a reply has no code')
    const status = /^[45]\.\d{1,3}\.\d{1,3}$/.test(enhancedCode) ? enhancedCode : `${code < 500 ? 4 : 5}.7.1`
    return [code, status, line(message)]
}

function fields_of (transaction) {
    return transaction.header.header_list
}

// The position in this list that a path names.
function place (path, pattern, items) {
    const found = pattern.exec(path)
    if (!found || Number(found[1]) >= items.length) throw new Error(`${path} cannot be changed`)
    return Number(found[1])
}

// Positions refer to the lists before any change, so entries are removed from the end. Haraka sends the list of fields.
function change (transaction, { added, values, fields, recipients }) {
    const { header } = transaction
    for (const at of recipients.sort((a, b) => b - a)) transaction.rcpt_to.splice(at, 1)
    for (const [at, text] of values) {
        const name = header.header_list[at].split(':', 1)[0]
        header.header_list[at] = `${name}: ${text}\n`
        refresh(header, name)
    }
    for (const at of fields.sort((a, b) => b - a)) {
        const [gone] = header.header_list.splice(at, 1)
        refresh(header, gone.split(':', 1)[0])
    }
    if (values.length || fields.length) transaction.reset_headers()
    for (const [name, text] of added) transaction.add_header(name, text)
}

// For other plugins: the values of this field, as they are in the list now.
function refresh (header, name) {
    const key = name.trim().toLowerCase()
    const named = header.header_list.filter((one) => one.split(':', 1)[0].trim().toLowerCase() === key)
    delete header.headers[key]
    delete header.headers_decoded[key]
    if (!named.length) return
    header.headers[key] = named.map((one) => one.slice(one.indexOf(':') + 1).replace(/^\s*/, ''))
    header.headers_decoded[key] = header.headers[key].map((value) => header.decode_header(value))
}
