#!lua name=rl
-- The commands of redis-rl as functions. Made of functions/ by `make functions`.
-- Version 15
local VERSION = 15
local KEEPS_STATE, ONLY, DIRECT, PLAIN, HELD = true, false, false, false, true
local function rules()
