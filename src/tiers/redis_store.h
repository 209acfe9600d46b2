// Blobs on a Redis server, one value each, under PREFIX:LINEAGE:SALT:TEXT.
//
// A value holds all that its reader needs. A server that does not answer in time is not asked again for a while, which
// doubles with each failure. There is no TLS: run the server in a network that may see prompts, or put a tunnel in
// front.
//
// Thread-safety: as BlobStore; reads and writes have a connection each.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "tiers/blob_store.h"

namespace kvasir {

struct RedisOptions {
  std::string host;
  int port = 6379;
  std::string password;  // empty: none
  std::string prefix = "kvasir";
  std::int64_t ttl = 24 * 3600;  // seconds for which a blob is kept
  // Limits for a connection, for an answer without a blob, and for a blob sent or received.
  std::chrono::milliseconds connect_timeout{500};
  std::chrono::milliseconds ask_timeout{200};
  std::chrono::milliseconds blob_timeout{5000};
  // How long a server that failed is not asked: initially and at most.
  std::chrono::milliseconds first_pause{500};
  std::chrono::milliseconds longest_pause{30000};
};

// Reads "HOST:PORT" or "[ADDRESS]:PORT" into host and port. Errors: kInvalidArgument.
Status parse_redis_address(const std::string& text, RedisOptions* options);

// Connects at the first call, so the server may start later.
std::unique_ptr<BlobStore> make_redis_store(const RedisOptions& options);

}  // namespace kvasir
