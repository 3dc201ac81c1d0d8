-- What the states of several rules read.

local NOT_AN_INTEGER = 'ERR value is not an integer or out of range'

-- A signed 64-bit integer as the server stores it. The number is exact up to 2^53.
local read_integer = ONLY ~= 'sliding' and ONLY ~= 'acquire' and function(text)
  local _, _, sign, digits = find(text, '^(-?)([1-9]%d*)$')
  if text == '0' then
    return 0
  end
  local last = sign == '' and '9223372036854775807' or '9223372036854775808'
  if not digits or #digits > 19 or #digits == 19 and digits > last then
    fail(NOT_AN_INTEGER)
  end
  return tonumber(text)
end
