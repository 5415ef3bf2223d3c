"""Scripts of the state store in Lua, each one atomic step; commands of Redis 6.2 only."""

from __future__ import annotations

ACQUIRE = """
-- KEYS: leader, fencing. ARGV: candidate id, address, ttl in ms.
-- Returns the fencing token, or nil while another candidate leads.
-- A renewal keeps the token; every change of leader raises it. It is never below the clock's
-- seconds, so that it goes on rising even where the store has lost what it held.
local token
local held = redis.call('GET', KEYS[1])
if held then
  local of, candidate = string.match(held, '^(%d+)|([^|]*)|')
  if candidate ~= ARGV[1] then return nil end
  token = tonumber(of)
else
  local last = tonumber(redis.call('GET', KEYS[2]) or 0)
  token = math.max(last + 1, tonumber(redis.call('TIME')[1]))
  redis.call('SET', KEYS[2], string.format('%.0f', token))
end
local lease = string.format('%.0f', token) .. '|' .. ARGV[1] .. '|' .. ARGV[2]
redis.call('SET', KEYS[1], lease, 'PX', ARGV[3])
return token
"""

RELEASE = """
-- KEYS: leader. ARGV: candidate id.
local held = redis.call('GET', KEYS[1])
if held and string.match(held, '^%d+|([^|]*)|') == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""

PRUNE = """
-- KEYS: members, member. ARGV: member id. In one step, or a renewal in between would be undone.
if redis.call('EXISTS', KEYS[2]) == 0 then
  return redis.call('SREM', KEYS[1], ARGV[1])
end
return 0
"""

WRITE_JOURNAL = """
-- KEYS: fencing, requests, learned. ARGV: fencing token, seconds to live, number of requests set,
-- number removed; then a name and a record for each set, a name for each removed, a name and a
-- record for each model. Returns 0, having written nothing, once a newer token was given out.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
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
