// A program that calls NCCL through the shim where there is none. 0 when the call fails as it must.
extern "C" int ncclGroupStart();

int main() {
  constexpr int kSystemError = 2;
  return ncclGroupStart() == kSystemError ? 0 : 1;
}
