#include "requests/request_list.h"

#include <algorithm>
#include <utility>

namespace kvasir {

void RequestList::add(std::unique_ptr<RequestGroup> group) {
  const auto behind = std::ranges::upper_bound(groups_, group->priority, {}, &RequestGroup::priority);
  groups_.insert(behind, std::move(group));
}

RequestGroup* RequestList::find(RequestId id) const {
  const auto group = std::ranges::find(groups_, id, &RequestGroup::id);
  return group == groups_.end() ? nullptr : group->get();
}

std::int64_t RequestList::remove_ended() {
  return static_cast<std::int64_t>(
      std::erase_if(groups_, [](const std::unique_ptr<RequestGroup>& group) { return group->has_ended(); }));
}

std::int64_t RequestList::holding_pages() const {
  return std::ranges::count_if(groups_, [](const std::unique_ptr<RequestGroup>& group) {
    return std::ranges::any_of(group->requests, [](const auto& request) { return request->holds_pages(); });
  });
}

std::vector<Request*> RequestList::active() const {
  std::vector<Request*> active;
  for (const auto& group : groups_)
    for (const auto& request : group->requests)
      if (!request->is(RequestState::kEnded)) active.push_back(request.get());
  return active;
}

bool RequestList::has(RequestState state) const {
  return std::ranges::any_of(groups_, [&](const std::unique_ptr<RequestGroup>& group) {
    return std::ranges::any_of(group->requests, [&](const auto& request) { return request->is(state); });
  });
}

}  // namespace kvasir
