#include "server/dialects/response_store.h"

#include <iterator>
#include <utility>

namespace kvasir::server {
namespace {

// What an entry takes besides its texts: nodes of the list and of the map, and the strings' own headers.
constexpr std::size_t kEntryBytes = 512;

std::size_t bytes_of_response(const StoredResponse& response) {
  std::size_t bytes = kEntryBytes + response.body.size();
  for (const Message& message : response.messages) {
    bytes += sizeof(Message) + message.role.size() + message.content.size() + message.reasoning.size() +
             message.tool_call_id.size() + message.name.size();
    for (const ToolCall& call : message.tool_calls)
      bytes += sizeof(ToolCall) + call.id.size() + call.name.size() + call.arguments.size();
  }
  return bytes;
}

}  // namespace

bool ResponseStore::put(const Caller& caller, const std::string& id, StoredResponse response) {
  const std::size_t bytes = bytes_of_response(response);
  if (bytes > limits_.tenant || bytes > limits_.all) return false;
  auto shared = std::make_shared<const StoredResponse>(std::move(response));
  const std::lock_guard lock(mutex_);
  if (const auto same = by_id_.find(id); same != by_id_.end()) drop(same->second);
  while (of_tenants_[caller.tenant] + bytes > limits_.tenant) {
    Place oldest = std::prev(entries_.end());
    while (oldest->tenant != caller.tenant) --oldest;
    drop(oldest);
  }
  while (bytes_ + bytes > limits_.all) drop(std::prev(entries_.end()));
  entries_.push_front({id, caller.tenant, caller.key_id, std::move(shared), bytes});
  by_id_[id] = entries_.begin();
  of_tenants_[caller.tenant] += bytes;
  bytes_ += bytes;
  return true;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const Caller& caller, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const Place entry = own(caller, id);
  if (entry == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, entry);
  return entry->response;
}

bool ResponseStore::remove(const Caller& caller, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const Place entry = own(caller, id);
  if (entry == entries_.end()) return false;
  drop(entry);
  return true;
}

std::size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

ResponseStore::Place ResponseStore::own(const Caller& caller, const std::string& id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return entries_.end();
  const Entry& entry = *found->second;
  return entry.tenant == caller.tenant && entry.key_id == caller.key_id ? found->second : entries_.end();
}

void ResponseStore::drop(Place entry) {
  bytes_ -= entry->bytes;
  const auto tenant = of_tenants_.find(entry->tenant);
  tenant->second -= entry->bytes;
  if (tenant->second == 0) of_tenants_.erase(tenant);
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

}  // namespace kvasir::server
