#include "requests/leaving_sessions.h"

namespace kvasir {

void LeavingSessions::add(const RequestGroup& group) {
  sessions_.push_back({group.session.base->life(), group.session.base, group.tenant});
}

void LeavingSessions::forget_destroyed() {
  std::erase_if(sessions_, [](const Leaving& session) { return session.life.expired(); });
}

void LeavingSessions::add_to(std::vector<ScheduleTask>& tasks, const Admissions& admissions) const {
  for (const Leaving& each : sessions_) {
    ScheduleTask task;
    task.holds = task.spared = task.leaves = true;
    task.priority = tasks.back().priority;
    task.tenant = admissions.index_of(each.tenant);
    task.used = task.estimate = each.session->held().sequence->bytes();
    tasks.push_back(task);
  }
}

}  // namespace kvasir
