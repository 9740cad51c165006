// The suites' implementations: those that this processor can run.
#include "test_data.h"

namespace onebit::codec::test {

std::vector<const Implementation*> implementations_under_test() {
  std::vector<const Implementation*> all;
  for (const Implementation& implementation : implementations()) all.push_back(&implementation);
  return all;
}

}  // namespace onebit::codec::test
