// Blobs on a Redis server, one value each, under PREFIX:LINEAGE:SALT:TEXT.
//
// A value is all there is of a blob: what a reader must know stands in it. A server that does not answer in time is not
// asked again for a while, which doubles with each failure, so that it costs what it holds and nothing else. There is
// no TLS: put the server into a network that may see prompts, or a tunnel in front.
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
  std::int64_t ttl = 24 * 3600;  // seconds that a blob stays
  // For a connection, for an answer that holds no blob, and for one that does or a blob to be taken.
  std::chrono::milliseconds connect_timeout{500};
  std::chrono::milliseconds ask_timeout{200};
  std::chrono::milliseconds blob_timeout{5000};
  // How long a server that failed is left alone, at first and at most.
  std::chrono::milliseconds first_pause{500};
  std::chrono::milliseconds longest_pause{30000};
};

// Reads "HOST:PORT" or "[ADDRESS]:PORT" into host and port. Errors: kInvalidArgument.
Status parse_redis_address(const std::string& text, RedisOptions* options);

// Connects when it is first asked: a server that comes later is as good.
std::unique_ptr<BlobStore> make_redis_store(const RedisOptions& options);

}  // namespace kvasir
