/* optimizer.h needs no other header before it, may be included twice, and is C99. That this file compiles is
 * the test. */
#include <onebit/optimizer.h>
/* The second time. */
#include <onebit/optimizer.h>

extern int onebit_optimizer_header;
int onebit_optimizer_header = onebitOneBitLamb;
