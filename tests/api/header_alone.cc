// onebit.hpp needs no other header before it, may be included twice, and is C++17. That this file compiles is
// the test.
#include <onebit/onebit.hpp>

extern int onebit_cpp_header_version;
int onebit_cpp_header_version = ONEBIT_VERSION;
