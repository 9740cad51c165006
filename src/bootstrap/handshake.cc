// The handshake's four messages, and the state machine of each end.
//
//   client hello   preamble | client nonce (32)                                   44 bytes, in every version
//   server hello   preamble | server nonce (32) | proof (32)                      76 bytes
//   client proof   kind (1) | payload length (2) | proof (32) | payload (0-512)
//   server answer  kind (1) | payload length (2) | proof (32) | payload (0-512)
//
//   preamble       magic (8) | protocol version (2) | kind (1) | purpose (1)      12 bytes, in every version
//
// Numbers are little endian. Every proof is BLAKE2b under the key over a label of its own, both hellos and,
// after them, all that came later: fresh nonces of both ends rule out replay, the labels rule out reflection.
// A server that sees another version or purpose answers with its preamble alone. An end that finds the
// other's proof wrong sends kind kWrongKey, without proof.
//
// Invariant: no more bytes are asked of the socket than the message at hand still lacks, and all of them land
// in arrays of fixed size. Threads: one at a time per object.
#include "bootstrap/handshake.h"

#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace onebit::bootstrap {
namespace {

constexpr std::size_t kMagicSize = 8;
constexpr std::array<std::uint8_t, kMagicSize> kMagic{0xB1, 'o', 'n', 'e', 'b', 'i', 't', '\n'};
constexpr std::size_t kPreambleSize = 12;
constexpr std::size_t kNonceSize = 32;
constexpr std::size_t kProofSize = 32;
constexpr std::size_t kHelloSize = kPreambleSize + kNonceSize;
constexpr std::size_t kHeadSize = 3 + kProofSize;  // of the client proof and the server answer
constexpr std::size_t kMessageMax = kHeadSize + kMaxHandshakePayload;

enum class Kind : std::uint8_t {
  kClientHello = 1,
  kServerHello = 2,
  kClientProof = 3,
  kAnswer = 4,
  kRefusal = 5,
  kWrongKey = 6,
};

// Of equal length, so that no label continues another.
constexpr std::string_view kServerProofLabel = "onebit handshake: server proof ";
constexpr std::string_view kClientProofLabel = "onebit handshake: client proof ";
constexpr std::string_view kAnswerLabel = "onebit handshake: server answer";
static_assert(kServerProofLabel.size() == kClientProofLabel.size() &&
              kServerProofLabel.size() == kAnswerLabel.size());

constexpr std::string_view kOtherKey =
    "the other end has another key: it belongs to another job or has another secret (ONEBIT_SECRET, "
    "ONEBIT_SECRET_FILE and ONEBIT_JOB_ID must be the same on all ranks)";

bool sodium_ready() {
  static const bool ready = sodium_init() >= 0;
  return ready;
}

std::string_view name_of(std::uint8_t purpose) {
  switch (static_cast<Purpose>(purpose)) {
    case Purpose::kRendezvous:
      return "rendezvous";
    case Purpose::kTransport:
      return "data";
  }
  return "unknown";
}

using Proof = std::array<std::uint8_t, kProofSize>;

/// Keyed BLAKE2b over pieces.
class Prover {
 public:
  Prover(const Key& key, std::string_view label) {
    crypto_generichash_init(&state_, key.data(), key.size(), kProofSize);
    add(label.data(), label.size());
  }
  void add(const void* data, std::size_t size) {
    crypto_generichash_update(&state_, static_cast<const unsigned char*>(data), size);
  }
  Proof finish() {
    Proof proof{};
    crypto_generichash_final(&state_, proof.data(), proof.size());
    return proof;
  }

 private:
  crypto_generichash_state state_;
};

}  // namespace

struct Handshake::State {
  enum class Phase { kSend, kReadHello, kReadHead, kReadPayload, kAnswer, kDone, kFailed };

  int fd;
  Role role;
  Key key;
  Purpose purpose;
  std::vector<std::byte> payload;  // ours
  std::vector<std::byte> peer;     // theirs, once authentic
  Phase phase = Phase::kSend;
  Phase after_send = Phase::kReadHello;
  Status failure;        // what advance returns once all is sent (kSend) or for ever (kFailed)
  bool refused = false;  // the failure is an authentic peer's refusal
  std::array<std::uint8_t, 2 * kHelloSize> hellos{};  // both hellos without the server's proof
  Proof client_proof{};
  std::array<std::uint8_t, kMessageMax> in{};
  std::size_t have = 0;
  std::array<std::uint8_t, kMessageMax> out{};
  std::size_t out_size = 0;
  std::size_t sent = 0;

  State(int socket, Role r, const Key& k, Purpose p, std::span<const std::byte> mine)
      : fd(socket), role(r), key(k), purpose(p), payload(mine.begin(), mine.end()) {
    if (!sodium_ready()) fail(Status(Code::kInternalError, "libsodium does not initialise"));
    check_payload();
    if (role == Role::kServer && phase != Phase::kFailed) phase = Phase::kReadHello;
    if (role == Role::kClient && phase != Phase::kFailed) {
      put_hello(Kind::kClientHello, hellos.data());
      queue(hellos.data(), kHelloSize, Phase::kReadHello);
    }
  }
  ~State() { sodium_memzero(key.data(), key.size()); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void fail(Status why) {
    failure = std::move(why);
    phase = Phase::kFailed;
  }
  /// Fails once `out` is sent.
  void fail_after_sending(Status why) {
    failure = std::move(why);
    after_send = Phase::kFailed;
  }
  void check_payload() {
    if (payload.size() <= kMaxHandshakePayload) return;
    fail(Status::error(Code::kInvalidArgument, "handshake payload of {} bytes, above the limit of {}",
                       payload.size(), kMaxHandshakePayload));
  }

  void queue(const void* data, std::size_t size, Phase next) {
    std::memcpy(out.data(), data, size);
    out_size = size;
    sent = 0;
    phase = Phase::kSend;
    after_send = next;
  }
  void put_preamble(Kind kind, std::uint8_t* to) const {
    std::copy(kMagic.begin(), kMagic.end(), to);
    to[8] = kHandshakeVersion & 0xFF;
    to[9] = kHandshakeVersion >> 8;
    to[10] = static_cast<std::uint8_t>(kind);
    to[11] = static_cast<std::uint8_t>(purpose);
  }
  void put_hello(Kind kind, std::uint8_t* to) const {
    put_preamble(kind, to);
    randombytes_buf(to + kPreambleSize, kNonceSize);
  }

  Proof server_proof() const {
    Prover prover(key, kServerProofLabel);
    prover.add(hellos.data(), hellos.size());
    return prover.finish();
  }
  /// The proof of a client proof or a server answer whose head starts at `message`.
  Proof message_proof(const std::uint8_t* message) const {
    const bool answer = message[0] != static_cast<std::uint8_t>(Kind::kClientProof);
    Prover prover(key, answer ? kAnswerLabel : kClientProofLabel);
    prover.add(hellos.data(), hellos.size());
    if (answer) prover.add(client_proof.data(), client_proof.size());
    prover.add(message, 3);
    prover.add(message + kHeadSize, payload_size(message));
    return prover.finish();
  }
  static std::size_t payload_size(const std::uint8_t* message) {
    return message[1] | static_cast<std::size_t>(message[2]) << 8;
  }
  void queue_message(Kind kind, std::span<const std::byte> content, Phase next) {
    std::array<std::uint8_t, kMessageMax> message{};
    message[0] = static_cast<std::uint8_t>(kind);
    message[1] = content.size() & 0xFF;
    message[2] = static_cast<std::uint8_t>(content.size() >> 8);
    if (!content.empty()) std::memcpy(message.data() + kHeadSize, content.data(), content.size());
    if (kind != Kind::kWrongKey) {
      const Proof proof = message_proof(message.data());
      std::copy(proof.begin(), proof.end(), message.begin() + 3);
      if (kind == Kind::kClientProof) client_proof = proof;
    }
    queue(message.data(), kHeadSize + content.size(), next);
  }

  /// True when `in` holds `need` bytes; false when it must wait or has failed.
  bool fill(std::size_t need);
  bool magic_matches();
  void read_hello();
  void read_head();
  void read_payload();
  void send_some();
};

bool Handshake::State::fill(std::size_t need) {
  while (have < need) {
    const ssize_t got = ::recv(fd, in.data() + have, need - have, MSG_DONTWAIT);
    if (got > 0) {
      have += static_cast<std::size_t>(got);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    fail(got == 0 ? Status(Code::kRemoteError, "the other end closed the connection during the handshake")
                  : Status::error(Code::kRemoteError, "the connection broke during the handshake: {}",
                                  Status::system(errno, "recv").message()));
    return false;
  }
  return true;
}

void Handshake::State::send_some() {
  while (sent < out_size) {
    const ssize_t put = ::send(fd, out.data() + sent, out_size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put >= 0) {
      sent += static_cast<std::size_t>(put);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (after_send == Phase::kFailed) break;  // the failure that was to be told matters more
    return fail(Status::error(Code::kRemoteError, "the connection broke during the handshake: {}",
                              Status::system(errno, "send").message()));
  }
  phase = after_send;
  have = 0;
}

bool Handshake::State::magic_matches() {
  const std::size_t size = std::min(have, kMagicSize);
  if (std::equal(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(size), kMagic.begin())) return true;
  fail(Status(Code::kDataError,
              "what the other end sends is not onebit's protocol (another program uses this "
              "port, or a port scanner called)"));
  return false;
}

void Handshake::State::read_hello() {
  // A server reads the hello whole before it answers, also one of another version: closing a socket with
  // unread bytes would reset it, and the answer might not arrive.
  const bool server = role == Role::kServer;
  const bool preamble_here = fill(kPreambleSize);
  if (!magic_matches() || !preamble_here) return;
  if (server && !fill(kHelloSize)) return;

  const unsigned version = in[8] | static_cast<unsigned>(in[9]) << 8;
  Status mismatch;
  if (version != kHandshakeVersion) {
    mismatch = Status::error(Code::kInvalidUsage,
                             "the other end speaks version {} of onebit's protocol, this library version {}: "
                             "use one release of onebit on all ranks",
                             version, kHandshakeVersion);
  } else if (in[11] != static_cast<std::uint8_t>(purpose)) {
    mismatch = Status::error(Code::kInvalidUsage,
                             "a {} connection met a {} one: the port belongs to another part of onebit",
                             name_of(static_cast<std::uint8_t>(purpose)), name_of(in[11]));
  }
  if (!mismatch.ok()) {
    if (!server) return fail(std::move(mismatch));
    std::array<std::uint8_t, kPreambleSize> preamble{};
    put_preamble(Kind::kServerHello, preamble.data());
    queue(preamble.data(), preamble.size(), Phase::kFailed);
    return fail_after_sending(std::move(mismatch));
  }
  if (in[10] != static_cast<std::uint8_t>(server ? Kind::kClientHello : Kind::kServerHello)) {
    return fail(Status(Code::kDataError, "the other end sent a handshake message out of turn"));
  }

  if (server) {
    std::copy_n(in.begin(), kHelloSize, hellos.begin());
    put_hello(Kind::kServerHello, hellos.data() + kHelloSize);
    std::array<std::uint8_t, kHelloSize + kProofSize> hello{};
    std::copy_n(hellos.begin() + kHelloSize, kHelloSize, hello.begin());
    const Proof proof = server_proof();
    std::copy(proof.begin(), proof.end(), hello.begin() + kHelloSize);
    return queue(hello.data(), hello.size(), Phase::kReadHead);
  }
  if (!fill(kHelloSize + kProofSize)) return;
  std::copy_n(in.begin(), kHelloSize, hellos.begin() + kHelloSize);
  if (sodium_memcmp(in.data() + kHelloSize, server_proof().data(), kProofSize) != 0) {
    queue_message(Kind::kWrongKey, {}, Phase::kFailed);
    return fail_after_sending(Status(Code::kInvalidUsage, std::string(kOtherKey)));
  }
  queue_message(Kind::kClientProof, payload, Phase::kReadHead);
}

void Handshake::State::read_head() {
  if (!fill(kHeadSize)) return;
  const auto kind = static_cast<Kind>(in[0]);
  if (kind == Kind::kWrongKey) return fail(Status(Code::kInvalidUsage, std::string(kOtherKey)));
  const bool expected =
      role == Role::kServer ? kind == Kind::kClientProof : kind == Kind::kAnswer || kind == Kind::kRefusal;
  if (!expected) {
    return fail(Status(Code::kDataError, "the other end sent a handshake message out of turn"));
  }
  if (payload_size(in.data()) > kMaxHandshakePayload) {
    return fail(Status::error(Code::kDataError,
                              "the other end announces a handshake payload of {} bytes, "
                              "above the limit of {}",
                              payload_size(in.data()), kMaxHandshakePayload));
  }
  phase = Phase::kReadPayload;
}

void Handshake::State::read_payload() {
  if (!fill(kHeadSize + payload_size(in.data()))) return;
  const Proof proof = message_proof(in.data());
  if (sodium_memcmp(in.data() + 3, proof.data(), kProofSize) != 0) {
    if (role == Role::kServer) {
      queue_message(Kind::kWrongKey, {}, Phase::kFailed);
      return fail_after_sending(Status(Code::kInvalidUsage, std::string(kOtherKey)));
    }
    return fail(Status(Code::kDataError, "the other end's last handshake message is forged or damaged"));
  }
  const auto* content = reinterpret_cast<const std::byte*>(in.data() + kHeadSize);
  peer.assign(content, content + payload_size(in.data()));
  if (role == Role::kServer) {
    client_proof = proof;
    phase = Phase::kAnswer;
  } else if (static_cast<Kind>(in[0]) == Kind::kRefusal) {
    refused = true;
    fail(Status::error(Code::kRemoteError, "refused by the other end: {}",
                       std::string_view(reinterpret_cast<const char*>(peer.data()), peer.size())));
  } else {
    phase = Phase::kDone;
  }
}

Handshake::Handshake(int fd, Role role, const Key& key, Purpose purpose, std::span<const std::byte> payload)
    : state_(std::make_unique<State>(fd, role, key, purpose, payload)) {}
Handshake::~Handshake() = default;
Handshake::Handshake(Handshake&&) noexcept = default;
Handshake& Handshake::operator=(Handshake&&) noexcept = default;

Result<Handshake::Step> Handshake::advance() {
  State& s = *state_;
  for (;;) {
    const State::Phase before = s.phase;
    switch (before) {
      case State::Phase::kSend:
        s.send_some();
        if (s.phase == State::Phase::kSend) return Step::kWantWrite;
        break;
      case State::Phase::kReadHello:
        s.read_hello();
        break;
      case State::Phase::kReadHead:
        s.read_head();
        break;
      case State::Phase::kReadPayload:
        s.read_payload();
        break;
      case State::Phase::kAnswer:
        return Step::kWantAnswer;
      case State::Phase::kDone:
        return Step::kDone;
      case State::Phase::kFailed:
        return s.failure;
    }
    if (s.phase == before) return Step::kWantRead;
  }
}

void Handshake::answer(std::span<const std::byte> payload) {
  State& s = *state_;
  if (s.phase != State::Phase::kAnswer) return;
  s.payload.assign(payload.begin(), payload.end());
  s.check_payload();
  if (s.phase != State::Phase::kFailed) s.queue_message(Kind::kAnswer, s.payload, State::Phase::kDone);
}

void Handshake::refuse(std::string_view reason) {
  State& s = *state_;
  if (s.phase != State::Phase::kAnswer) return;
  const std::string_view text = reason.substr(0, kMaxHandshakePayload);
  s.queue_message(Kind::kRefusal, std::as_bytes(std::span(text)), State::Phase::kFailed);
  s.fail_after_sending(Status(Code::kInvalidUsage, std::string(reason)));
}

bool Handshake::refused() const {
  return state_->refused;
}

std::span<const std::byte> Handshake::peer_payload() const {
  return state_->peer;
}

}  // namespace onebit::bootstrap
