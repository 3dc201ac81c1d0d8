-- The rules of the module in Lua, for servers that load no modules.
--
-- The same words, replies, errors, keys, members, bytes and expiries as the commands of the module, so that a key can be
-- handed over in the middle of a window. The rooms are those of src/: command/ has the words of a call, limit/ the rules, state/
-- how a limit lies in the keyspace. A function has the name that it has there. docs/FUNCTIONS.md describes how to use the two files
-- that `make functions` makes of all this: rl.library.lua for FUNCTION LOAD and rl.script.lua for EVALSHA.
--
-- `include` stands for the lines of another file: it sees the locals before it. A call goes through the steps of the module: parse
-- the words, read the state, decide, apply, reply. Reading changes nothing (but for a few expired members, which it removes where
-- that saves counting them), so that a call can still be refused and RL.PEEK is the same code without applying.
--
-- Each call runs a script from its first line to its last. Creating a function takes time, and so does each local that it
-- captures. So a call creates only the functions that it needs: those named make_ create others, and some are created in some
-- of the calls only. In a script ONLY is the rule of the call if there is exactly one, DIRECT is true if the command is that
-- of this rule, PLAIN if it has one of the plain forms (command/plain.lua), and HELD if it may use holds. In a library the first three
-- are false, the last is true, and functions are kept.
--
-- Numbers are doubles: integers are exact up to 2^53. Times in milliseconds stay far below that; nanoseconds do not, and
-- are kept as seconds and nanoseconds.

local floor, find, format = math.floor, string.find, string.format

local MOST = 9007199254740991 -- 2^53 - 1

include 'server'
include 'command/args'

-- Opens the log of a sliding window.
local open_log = nil

local make_logs = (not ONLY or ONLY == 'sliding') and function()
  include 'state/sliding/mod'
  return open_log
end

include 'state/counter_name'
include 'command/plain'

-- Runs a call of any other form.
local run = nil

local make_run = not PLAIN and function()
  include 'command/mod'
  return run
end

include 'command/call'
