-- Applies the bounds to the dead letters. ARGV 2 most, 3 ms. Returns dropped and expired.
local dropped, expired = bound(tonumber(ARGV[2]), tonumber(ARGV[3]))
return {dropped, expired}
