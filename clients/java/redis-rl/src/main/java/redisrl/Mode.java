package redisrl;

/** How the server is called. Keys and answers are the same in all modes. */
public enum Mode {
  /** Finds out what the server has, and uses the best of it. */
  AUTO,
  /** Calls the commands of the module. */
  MODULE,
  /**
   * Calls the function library, which the limiter loads where it is missing, and replaces where it
   * is older.
   */
  FUNCTIONS,
  /** Calls a script by its digest, and sends it where the server does not have it. */
  SCRIPT
}
