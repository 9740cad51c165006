// Keys: at random, or from text. No state but libsodium's own; any thread.
#include <sodium.h>

#include "bootstrap/handshake.h"

namespace onebit::bootstrap {
namespace {

/// Picks libsodium's fast implementations; the portable ones work without.
void ready() {
  static const int once = sodium_init();
  static_cast<void>(once);
}

}  // namespace

Key random_key() {
  ready();
  Key key;
  randombytes_buf(key.data(), key.size());
  return key;
}

Key derive_key(std::string_view secret, std::string_view context) {
  ready();
  // First the secret alone, of any length, to a key; then the context under that key.
  Key root{};
  crypto_generichash(root.data(), root.size(), reinterpret_cast<const unsigned char*>(secret.data()),
                     secret.size(), nullptr, 0);
  Key key{};
  crypto_generichash(key.data(), key.size(), reinterpret_cast<const unsigned char*>(context.data()),
                     context.size(), root.data(), root.size());
  return key;
}

}  // namespace onebit::bootstrap
