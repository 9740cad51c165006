// optimizer.hpp needs no other header before it, may be included twice, and is C++17. That this file compiles
// is the test.
#include <onebit/optimizer.hpp>
// The second time.
#include <onebit/optimizer.hpp>

extern int onebit_optimizer_cpp_header;
int onebit_optimizer_cpp_header = onebitOneBitLamb;
