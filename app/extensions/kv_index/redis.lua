-- The index's operations in Redis. Each runs as one atomic step.
--
-- ARGV[1] names the operation: apply, owned, clear or sweep; see the functions of these names.
-- All keys start with the namespace KEYS[1] and a colon:
--
--   epoch                    string   when the data was created; a new one after a loss of all data
--   version                  counter  changes with holders, adapters and tiers
--   holders                  hash     number -> holder: JSON of pod, model, rank, group, scored
--   next, free               counter, sorted set: numbers to assign
--   retired                  set      numbers whose blocks are still being removed
--   adapters                 set      number, blank, adapter
--   tiers                    set      names
--   b:<tier>:<request key>   string   bitmap of the numbers that hold a block
--   e:<number>               hash     engine key -> request keys
--   r:<number>               hash     tier and engine key -> further copies
--   g:<source>               hash     group -> number
--   p:<pod>                  set      sources
--   s:<source>               hash     latest batch
--   copies, blocks           counter  content; blocks count once for each tier
--
-- Block keys are written in 16 hexadecimal digits. Bit n of a bitmap, read as a little-endian number, is holder n.

local ns = KEYS[1]
local call = redis.call
local function at(name) return ns .. ':' .. name end
local function offset(number)
  local low = number % 8
  return number - low + 7 - low
end
local added, removed, blocks = 0, 0, 0
local function remove_copy(key, tier, number)
  local bitmap = at('b:' .. tier .. ':' .. key)
  if call('GETBIT', bitmap, offset(number)) == 0 then return end
  call('SETBIT', bitmap, offset(number), 0)
  removed = removed + 1
  if call('BITCOUNT', bitmap) == 0 then
    call('DEL', bitmap)
    blocks = blocks - 1
  end
end
local function count()
  if added ~= removed then call('INCRBY', at('copies'), added - removed) end
  if blocks ~= 0 then call('INCRBY', at('blocks'), blocks) end
end
local function epoch()
  local now = call('TIME')
  call('SETNX', at('epoch'), now[1] .. '.' .. now[2])
  return call('GET', at('epoch'))
end
local function retire(source, pod)
  local groups = call('HGETALL', at('g:' .. source))
  for i = 2, #groups, 2 do
    call('HDEL', at('holders'), groups[i])
    call('SADD', at('retired'), groups[i])
  end
  call('DEL', at('g:' .. source), at('s:' .. source))
  call('SREM', at('p:' .. pod), source)
  if #groups > 0 then call('INCR', at('version')) end
end

-- Applies a batch. Returns epoch, result, copies added and removed, unknown blocks.
local function apply()
  local batch = cmsgpack.unpack(ARGV[2])
  local present = epoch()
  if batch.epoch ~= '' and batch.epoch ~= present then return {present, 'lost'} end

  local stamp = at('s:' .. batch.source)
  if batch.sequence then
    local known = call('HMGET', stamp, 'seq', 'ts', 'rseq', 'rts')
    local seq, ts = tonumber(known[1]), tonumber(known[2])
    local again = tonumber(known[3]) == batch.sequence and tonumber(known[4]) == batch.ts
    if batch.restart and not again then
      retire(batch.source, batch.pod)
      call('HSET', stamp, 'rseq', batch.sequence, 'rts', string.format('%.17g', batch.ts))
    elseif seq and batch.ts <= ts and batch.sequence <= seq then
      return {present, 'already'}
    elseif seq and known[4] and batch.ts < tonumber(known[4]) and batch.sequence ~= seq + 1 then
      return {present, 'already'} -- a late batch from before the engine's restart
    end
  end

  local function number_of(op)
    local groups = at('g:' .. batch.source)
    local number = tonumber(call('HGET', groups, op.group))
    if number then
      if op.described and call('HGET', at('holders'), number) ~= op.described then
        call('HSET', at('holders'), number, op.described)
        call('INCR', at('version'))
      end
      return number
    end
    local free = call('ZPOPMIN', at('free'))
    number = tonumber(free[1])
    if not number then
      number = tonumber(call('GET', at('next')) or 0)
      if number >= batch.most then return nil end
      call('SET', at('next'), number + 1)
    end
    call('HSET', groups, op.group, number)
    call('SADD', at('p:' .. batch.pod), batch.source)
    call('HSET', at('holders'), number, op.described or op.default)
    call('INCR', at('version'))
    return number
  end
  for _, op in ipairs(batch.ops) do
    if op.kind == 's' and not number_of(op) then return {present, 'full'} end
  end

  local unknown = 0
  local function owned(number, engine)
    return call('HGET', at('e:' .. number), engine)
  end
  local function each(keys, f)
    for i = 1, #keys, 16 do
      local key = string.sub(keys, i, i + 15)
      if key ~= '0000000000000000' then f(key) end
    end
  end
  local function has(keys, tier, number)
    local all = true
    each(keys, function(key)
      all = all and call('GETBIT', at('b:' .. tier .. ':' .. key), offset(number)) == 1
    end)
    return all
  end
  local function add_copy(key, tier, number)
    local bitmap = at('b:' .. tier .. ':' .. key)
    if call('SETBIT', bitmap, offset(number), 1) == 0 then
      added = added + 1
      if call('BITCOUNT', bitmap) == 1 then blocks = blocks + 1 end
    end
    if batch.ttl > 0 then call('EXPIRE', bitmap, batch.ttl) end
  end
  local function add_tier(tier)
    if call('SADD', at('tiers'), tier) == 1 then call('INCR', at('version')) end
  end
  local function replace_known(number, tier, engine, before, now, tiers)
    if before == now then
      if has(now, tier, number) then
        call('HINCRBY', at('r:' .. number), tier .. ':' .. engine, 1)
      end
      return
    end
    local kept = {}
    each(now, function(key) kept[key] = true end)
    each(before, function(key)
      if not kept[key] then
        for _, other in ipairs(tiers) do remove_copy(key, other, number) end
      end
    end)
  end
  local function store(op)
    local number = number_of(op)
    if not number then return end
    add_tier(op.tier)
    if op.adapter and call('SADD', at('adapters'), number .. ' ' .. op.adapter) == 1 then
      call('INCR', at('version'))
    end
    local map, tiers = at('e:' .. number), call('SMEMBERS', at('tiers'))
    for i, now in ipairs(op.owned) do
      local engine = string.sub(op.engine, i * 16 - 15, i * 16)
      local before = call('HGET', map, engine)
      if before then replace_known(number, op.tier, engine, before, now, tiers) end
      if before ~= now then call('HSET', map, engine, now) end
    end
    for _, pair in ipairs(op.joined) do
      local owned = call('HGET', map, pair[1])
      if owned and not string.find(owned, pair[2], 1, true) then call('HSET', map, pair[1], pair[2] .. owned) end
    end
    each(op.keys, function(key) add_copy(key, op.tier, number) end)
  end
  local function known_number(op)
    return tonumber(call('HGET', at('g:' .. batch.source), op.group))
  end
  local function offload(op)
    local number = known_number(op)
    add_tier(op.tier)
    each(op.engine, function(engine)
      local keys = number and owned(number, engine)
      if keys then each(keys, function(key) add_copy(key, op.tier, number) end) else unknown = unknown + 1 end
    end)
  end
  local function remove(op)
    local number, tiers = known_number(op), call('SMEMBERS', at('tiers'))
    local listed = call('SISMEMBER', at('tiers'), op.tier) == 1
    local repeats = number and call('EXISTS', at('r:' .. number)) == 1
    each(op.engine, function(engine)
      local keys = number and listed and owned(number, engine)
      if not keys then
        unknown = unknown + 1
        return
      end
      local copies, copy = at('r:' .. number), op.tier .. ':' .. engine
      if repeats and call('HEXISTS', copies, copy) == 1 then
        if call('HINCRBY', copies, copy, -1) < 1 then call('HDEL', copies, copy) end
        return
      end
      local held = false
      each(keys, function(key)
        remove_copy(key, op.tier, number)
        for _, tier in ipairs(tiers) do
          held = held or call('GETBIT', at('b:' .. tier .. ':' .. key), offset(number)) == 1
        end
      end)
      if not held then
        call('HDEL', at('e:' .. number), engine)
        for _, tier in ipairs(repeats and tiers or {}) do call('HDEL', copies, tier .. ':' .. engine) end
      end
    end)
  end
  for _, op in ipairs(batch.ops) do
    if op.kind == 's' then store(op)
    elseif op.kind == 'o' then offload(op)
    elseif op.kind == 'r' then remove(op)
    else
      local known = call('HGETALL', stamp)
      retire(batch.source, batch.pod)
      if #known > 0 then call('HSET', stamp, unpack(known)) end
    end
  end
  if batch.sequence then
    local latest = math.max(batch.ts, tonumber(call('HGET', stamp, 'ts') or batch.ts))
    call('HSET', stamp, 'seq', batch.sequence, 'ts', string.format('%.17g', latest))
  end
  count()
  return {present, 'applied', added, removed, unknown}
end

-- Returns the request keys of engine keys of a source, given as group and key.
local function owned()
  local found = {}
  for i = 3, #ARGV, 2 do
    local number = call('HGET', at('g:' .. ARGV[2]), ARGV[i])
    found[#found + 1] = number and call('HGET', at('e:' .. number), ARGV[i + 1]) or false
  end
  return found
end

-- Removes a pod: retires its numbers.
local function clear()
  for _, source in ipairs(call('SMEMBERS', at('p:' .. ARGV[2]))) do retire(source, ARGV[2]) end
  return 1
end

-- Removes a page of blocks of a retired number. Returns the number of copies, and 1 if there are more.
local function sweep()
  local number, map = ARGV[2], at('e:' .. ARGV[2])
  if call('SISMEMBER', at('retired'), number) == 0 then return {0, 0} end
  local tiers, page = call('SMEMBERS', at('tiers')), call('HSCAN', map, 0, 'COUNT', 500)[2]
  for i = 1, #page, 2 do
    for k = 1, #page[i + 1], 16 do
      for _, tier in ipairs(tiers) do remove_copy(string.sub(page[i + 1], k, k + 15), tier, tonumber(number)) end
    end
    call('HDEL', map, page[i])
  end
  count()
  if call('HLEN', map) > 0 then return {removed, 1} end
  call('DEL', at('r:' .. number))
  call('SREM', at('retired'), number)
  call('ZADD', at('free'), number, number)
  for _, adapter in ipairs(call('SMEMBERS', at('adapters'))) do
    if string.match(adapter, '^%d+') == number then call('SREM', at('adapters'), adapter) end
  end
  return {removed, 0}
end

local commands = {apply = apply, owned = owned, clear = clear, sweep = sweep}
return commands[ARGV[1]]()
