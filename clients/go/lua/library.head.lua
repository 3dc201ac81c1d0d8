#!lua name=rl
-- The commands of redis-rl as functions. Made of functions/ by `make functions`.
-- Version 14
local VERSION = 14
local KEEPS_STATE, ONLY, DIRECT, PLAIN, HELD = true, false, false, false, true
local function rules()
