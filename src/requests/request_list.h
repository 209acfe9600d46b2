// The requests of a queue, in order of priority and then of arrival.
// Thread-safety: as RequestQueue.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "requests/request_group.h"

namespace kvasir {

class RequestList {
 public:
  // Puts a group behind those of its priority.
  void add(std::unique_ptr<RequestGroup> group);
  RequestGroup* find(RequestId id) const;  // null if there is none
  // Removes the groups of which all samples have ended. Returns how many these were.
  std::int64_t remove_ended();
  void clear() { groups_.clear(); }

  bool empty() const { return groups_.empty(); }
  std::int64_t size() const { return std::ssize(groups_); }  // groups
  std::int64_t holding_pages() const;                        // groups of which some sample holds pages
  // Returns the requests that have not ended, group by group.
  std::vector<Request*> active() const;
  // Whether any request is in this state.
  bool has(RequestState state) const;

 private:
  std::vector<std::unique_ptr<RequestGroup>> groups_;
};

}  // namespace kvasir
