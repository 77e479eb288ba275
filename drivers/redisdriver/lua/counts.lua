-- Returns ready, leased, all delayed, those delayed whose time has not come, dead.
return {redis.call('LLEN', ready), redis.call('ZCARD', leased), redis.call('ZCARD', delayed),
  redis.call('ZCOUNT', delayed, '(' .. now, '+inf'), redis.call('ZCARD', dead)}
