"""Scripts of the state store in Lua, each one atomic step; commands of Redis 6.2 only."""

from __future__ import annotations

ACQUIRE = """
-- KEYS: leader, fencing. ARGV: candidate id, address, ttl in ms, the newest token it has seen.
-- Returns the fencing token, or nil while another candidate leads.
-- A renewal keeps the token, unless the candidate has seen a newer one: the store went back. Every
-- change of leader raises it. It is above the clock's microseconds and above what the candidate has
-- seen: it goes on rising even where the store has lost what it held. Its last 16 bits also depend
-- on the candidate's name, which is drawn anew for each term: no two candidates get the same token
-- where the store and its clock go back and nobody remembers.
-- A lease or token that cannot be read counts as none, and so does one more than a day ahead of the
-- clock: no worker would obey it.
local clock = redis.call('TIME')
local now = 1000000 * tonumber(clock[1]) + tonumber(clock[2])
local function text(key)  -- a lease has 530 bytes at most
  local found = redis.pcall('GETRANGE', key, 0, 1023)
  return type(found) == 'string' and found or ''
end
local function token_of(digits)
  local found = digits and #digits <= 16 and tonumber(digits) or 0
  return found < now + 86000 * 1000000 and found or 0
end
local of, candidate = string.match(text(KEYS[1]), '^(%d+)|([^|]+)|.')
local token = token_of(of)
if token > 0 and candidate ~= ARGV[1] then return nil end
if token < math.max(1, tonumber(ARGV[4])) then
  local last = token_of(string.match(text(KEYS[2]), '^%d+$'))
  local drawn = tonumber(string.sub(redis.sha1hex(ARGV[1]), 1, 4), 16)
  token = math.max(last, tonumber(ARGV[4]), now) + 1 + drawn
end
redis.call('SET', KEYS[2], string.format('%.0f', token))
local lease = string.format('%.0f', token) .. '|' .. ARGV[1] .. '|' .. ARGV[2]
redis.call('SET', KEYS[1], lease, 'PX', ARGV[3])
return token
"""

RELEASE = """
-- KEYS: leader. ARGV: candidate id.
local held = redis.pcall('GETRANGE', KEYS[1], 0, 1023)
if type(held) == 'string' and string.match(held, '^%d+|([^|]*)|') == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""

JOIN = """
-- KEYS: member, members. ARGV: its text, time to live in ms, member id, the last byte to read.
-- Returns the text that was there before: in one step, or a namesake's in between goes unseen.
local before = redis.pcall('GETRANGE', KEYS[1], 0, ARGV[4])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[3])
return type(before) == 'string' and before or ''
"""

ROSTER = """
-- KEYS: members. ARGV: most ids, most bytes of one.
-- Returns the ids, then the beginning of each that was too long; those are taken out.
local reply = {{}}
for _, id in ipairs(redis.call('SRANDMEMBER', KEYS[1], ARGV[1])) do
  if #id <= tonumber(ARGV[2]) then
    table.insert(reply[1], id)
  else
    redis.call('SREM', KEYS[1], id)
    table.insert(reply, string.sub(id, 1, ARGV[2]))
  end
end
return reply
"""

PRUNE = """
-- KEYS: members, each member. ARGV: their ids.
-- In one step, or a renewal in between would be undone.
for n, id in ipairs(ARGV) do
  if redis.call('EXISTS', KEYS[n + 1]) == 0 then redis.call('SREM', KEYS[1], id) end
end
"""

WRITE_JOURNAL = """
-- KEYS: fencing, requests, learned. ARGV: fencing token, seconds to live, number of requests set,
-- number removed; then a name and a record for each set, a name for each removed, a name and a
-- record for each model. Returns 0, having written nothing, once a newer token was given out.
if redis.call('GETRANGE', KEYS[1], 0, 1023) ~= ARGV[1] then return 0 end
for _, key in ipairs({KEYS[2], KEYS[3]}) do  -- of another type: not ours
  local kind = redis.call('TYPE', key)['ok']
  if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', key) end
end
local at = 5
local function write(command, key, last)
  while at <= last do  -- unpack has room for some thousands; an even number, for pairs
    local upto = math.min(at + 3999, last)
    redis.call(command, key, unpack(ARGV, at, upto))
    at = upto + 1
  end
end
write('HSET', KEYS[2], 4 + 2 * ARGV[3])
write('HDEL', KEYS[2], 4 + 2 * ARGV[3] + ARGV[4])
write('HSET', KEYS[3], #ARGV)
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1
"""
