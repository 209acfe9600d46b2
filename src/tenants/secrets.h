// Random secrets, keyed hashes, and comparison in constant time (libsodium).
//
// API keys are hashed with keyed BLAKE2b-256. A fast hash would be wrong for passwords, but a key has 256 random bits,
// so it cannot be guessed.
//
// Thread-safety: functions may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir::tenants {

// 32 bytes: a hash, or a random secret.
using Digest = std::array<std::uint8_t, 32>;

// Returns 32 bytes from the system's random generator.
Digest random_secret();

// Returns a new API key, such as "kvasir_" and 43 characters of base64url: 256 random bits.
std::string random_api_key();

// Returns 8 random hexadecimal digits as the id of a key. They are not secret and not derived from the key.
std::string random_id();

// Returns the hash of a text under a secret. Hashes for different purposes are independent: one reveals nothing of
// another.
Digest keyed_hash(const Digest& secret, std::string_view purpose, std::string_view text);

// Returns whether two hashes are equal, in a time that does not depend on where they differ.
bool equal_in_constant_time(const Digest& a, const Digest& b);

// Converts to and from base64url without padding, 43 characters. Returns nullopt for any other text.
std::string digest_text(const Digest& digest);
std::optional<Digest> digest_from_text(std::string_view text);

}  // namespace kvasir::tenants
