/* onebit.h needs no other header before it, may be included twice, and is C99. That this file compiles is the
 * test. */
#include <onebit/onebit.h>

extern int onebit_header_version;
int onebit_header_version = ONEBIT_VERSION;
