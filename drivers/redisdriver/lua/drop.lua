-- Removes a dead letter. ARGV 2 entry. Returns 1, or 0 where there is none.
redis.call('UNLINK', deads .. ARGV[2])
return redis.call('ZREM', dead, ARGV[2])
