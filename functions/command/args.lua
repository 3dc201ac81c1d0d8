-- The words that every call has: integers and windows.

local MOST_SECONDS = 2147483647
local MOST_WINDOWS = 16

local BAD_LIMIT = 'ERR limit must be an integer from 0 to 9007199254740991'
local BAD_COST = 'ERR COST must be an integer from 1 to 9007199254740991'
local BAD_SECONDS = 'ERR %s must be a number of seconds from 0.001 to 2147483647 with at most three decimal places'
local BAD_END = 'ERR @ms must be a unix time in milliseconds, an integer from 0 to 9007199254740991'
local NOT_INCREASING = 'ERR windowSec must increase from one window to the next'
local WRONG_ARITY = "ERR wrong number of arguments for 'rl.%s' command"

-- An integer from `least` to `most`, at most 2^53 - 1, as the server writes it: no sign, no leading zero, no blank.
local function within(word, least, most)
  if #word <= 16 and (word == '0' or find(word, '^[1-9]%d*$')) then
    local value = tonumber(word)
    if value >= least and value <= most then
      return value
    end
  end
end

-- The length of a window in milliseconds, from seconds with up to three decimal places. One that ends at a time, `@ms`, has -1 - ms in place
-- of a length. `name`: what the line of the error calls seconds that are not those of a window.
local function window_of(word, name)
  local seconds = within(word, 1, MOST_SECONDS)
  if seconds then
    return seconds * 1000
  elseif not name and find(word, '^@') then
    return -1 - (within(string.sub(word, 2), 0, MOST) or fail(BAD_END))
  end
  local _, _, whole, places = find(word, '^(%d+)%.(%d%d?%d?)$')
  seconds = whole and within(whole, 0, MOST_SECONDS)
  local value = seconds and seconds * 1000 + tonumber(places) * 10 ^ (3 - #places)
  return value and value >= 1 and value <= MOST_SECONDS * 1000 and value or fail(format(BAD_SECONDS, name or 'windowSec'))
end
