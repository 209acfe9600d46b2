// Sessions of ended requests that their owners are about to destroy, which frees their memory.
// Thread-safety: as RequestQueue.
#pragma once

#include <memory>
#include <vector>

#include "requests/request_group.h"
#include "scheduler/admission.h"
#include "scheduler/schedule.h"

namespace kvasir {

class LeavingSessions {
 public:
  // Adds the session that a group continued.
  void add(const RequestGroup& group);
  // Removes the sessions that have been destroyed.
  void forget_destroyed();
  bool empty() const { return sessions_.empty(); }
  // Adds a task per session behind those of requests. REQUIRES: `tasks` is not empty.
  void add_to(std::vector<ScheduleTask>& tasks, const Admissions& admissions) const;

 private:
  struct Leaving {
    std::weak_ptr<const void> life;
    const SessionBase* session;
    int tenant;
  };
  std::vector<Leaving> sessions_;
};

}  // namespace kvasir
