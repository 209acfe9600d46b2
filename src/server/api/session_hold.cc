#include "server/api/session_hold.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "retention/policy_spec.h"
#include "retention/registry.h"
#include "server/api/api_response.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

// Returns the options of a session that a request makes. Errors: session files cannot save its policy; the message says
// what to send instead.
Result<SessionOptions> fresh_session(const RequestOptions& options, const std::string& servers) {
  SessionOptions fresh{.policy = with_demotion(options.policy.empty() ? servers : options.policy, options.demote),
                       .protect = options.protect,
                       .codec = options.codec,
                       .lora = options.lora};
  const Result<PolicySpec> spec = PolicySpec::parse(fresh.policy);
  if (!spec.ok()) return fresh;  // the default, or a malformed spec, which the engine refuses
  const Status saveable = check_saveable(*spec);
  if (saveable.ok()) return fresh;
  const bool demotes = spec->demotion.has_value();
  if (demotes && !options.demote.empty()) return Status(saveable).about({"demote"});
  if (!options.policy.empty()) return Status(saveable).about({"policy"});
  return unsupported(
      "sessions cannot be saved under '{}', the default of this server: session files do not hold {}; {}", servers,
      demotes ? "demoted tokens" : "offloaded keys and values",
      demotes ? R"("kv":{"demote":"off"} turns demotion off)" : R"(name another policy in "kv":{"policy":...})");
}

}  // namespace

// Distinguishes a session's own limits from a lack of the server's memory or disk.
SessionFault fault_of_session(const Status& status) {
  if (status.code() != StatusCode::kResourceExhausted) return {http_status(status), ""};
  const std::vector<std::string_view>& settings = status.settings();
  if (!settings.empty() && settings.front() == "session") return {403, "session_limit"};
  return {503, "session_no_room"};
}

bool SessionHold::take(SessionName name) {
  name_ = std::move(name);
  return took_ = desk_->take(name_);
}

void SessionHold::open(const RequestOptions& options, const std::string& default_policy, bool create,
                       std::function<void(const Status&)> opened) {
  at_desk_ = true;
  desk_->open(name_, fresh_session(options, default_policy), create,
              [this, opened = std::move(opened)](Result<OpenedSession> session) {
                at_desk_ = false;
                if (session.ok()) session_ = std::move(*session);
                opened(session.status());
              });
}

void SessionHold::save(std::function<bool()> wanted, std::function<void(const Status&)> saved) {
  at_desk_ = true;
  desk_->save(name_, session_.session, std::move(wanted),
              [this, saved = std::move(saved)](const Result<std::uint64_t>& bytes) {
                at_desk_ = false;
                if (bytes.ok()) bytes_ = *bytes;
                saved(bytes.status());
              });
}

void SessionHold::release() {
  if (desk_ == nullptr || at_desk_) return;
  desk_->steps().retire(std::exchange(session_.session, nullptr));
  if (std::exchange(took_, false)) desk_->give_back(name_);
}

Json SessionHold::json(const KvReport& kv) const {
  Json json = {{"id", name_.id},
               {"restored", session_.restored},
               {"restored_tokens", session_.kv.seen},
               {"tokens", kv.seen},
               {"kept", kv.kept},
               {"policy", kv.policy},
               {"codec", kv.codec},
               {"kv_bytes", kv.bytes}};
  if (session_.other_arithmetic)
    json["warning"] = "written by other kernels: later tokens may differ from what they would have been";
  return json;
}

}  // namespace kvasir::server
