// Answers of /v1/responses, kept in memory so that later requests can continue them. Each is visible to the key that
// asked for it alone. What is used least goes first when a tenant's part, or the whole store, is full.
// Thread-safety: any thread may call it.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvasir/request.h"
#include "server/http/exchange.h"

namespace kvasir::server {

struct StoredResponse {
  std::string body;               // as it was answered
  std::vector<Message> messages;  // the conversation up to and with it, without instructions
};

class ResponseStore {
 public:
  // Bytes of one tenant's responses, and of all. 0: nothing is stored.
  struct Limits {
    std::size_t tenant = std::size_t{16} << 20;
    std::size_t all = std::size_t{256} << 20;
  };

  explicit ResponseStore(const Limits& limits) : limits_(limits) {}

  // Whether it can hold a response at all.
  bool enabled() const { return limits_.tenant > 0 && limits_.all > 0; }

  // Keeps a response. Returns false if it is larger than a limit.
  bool put(const Caller& caller, const std::string& id, StoredResponse response);
  // Returns the caller's response; null if there is none of this id, or it is another key's.
  std::shared_ptr<const StoredResponse> find(const Caller& caller, const std::string& id);
  // Returns false if there is none.
  bool remove(const Caller& caller, const std::string& id);

  std::size_t bytes() const;

 private:
  struct Entry {
    std::string id;
    std::string tenant;
    std::string key_id;
    std::shared_ptr<const StoredResponse> response;
    std::size_t bytes = 0;
  };
  using Place = std::list<Entry>::iterator;

  // REQUIRES, as the calls below: the lock is held.
  Place own(const Caller& caller, const std::string& id);
  void drop(Place entry);

  const Limits limits_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the newest used first
  std::map<std::string, Place, std::less<>> by_id_;
  std::map<std::string, std::size_t, std::less<>> of_tenants_;  // bytes
  std::size_t bytes_ = 0;
};

}  // namespace kvasir::server
