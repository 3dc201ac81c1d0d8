/** The limits of redis-rl in place of those of other libraries. */
@NullMarked
package redisrl.integrations;

import org.jspecify.annotations.NullMarked;
