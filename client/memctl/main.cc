// memctl: the operator's view of a running gpumemd, through AdminService on its admin socket.
#include <csignal>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "client/memctl/admin_client.h"
#include "client/memctl/command_line.h"
#include "client/memctl/completion.h"
#include "client/memctl/format.h"
#include "client/memctl/render.h"

namespace gpumem::memctl {
namespace {

// False when stdout does not take it (a full disk, a closed pipe).
bool Print(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

ExitCode PrintOrFail(const std::string& text) {
  if (Print(text)) return kExitOk;
  std::perror("memctl: stdout");
  return kExitRefused;
}

ExitCode Fail(const Outcome& outcome) {
  std::fputs(outcome.line.c_str(), stderr);
  return outcome.exit;
}

template <typename Response, typename Call>
ExitCode Show(bool json, const Call& call) {
  Response response;
  const Outcome outcome = call(&response);
  if (!outcome.ok()) return Fail(outcome);
  return PrintOrFail(json ? ToJson(response, 2) + "\n" : ToTable(response, std::time(nullptr)));
}

ExitCode RemoveSegment(AdminClient* client, const CommandLine& line) {
  v1::RemoveSegmentResponse response;
  const Outcome outcome = client->RemoveSegment(line.segment, &response);
  if (!outcome.ok()) return Fail(outcome);
  if (line.json) return PrintOrFail(ToJson(response, 2) + "\n");
  return PrintOrFail(Printable(line.segment) + " removed, " + HumanBytes(response.released_bytes()) + " released\n");
}

ExitCode Events(AdminClient* client, bool json) {
  bool printed = true;
  const Outcome outcome = client->Events([&](const v1::Event& event) {
    printed = Print((json ? ToJson(event, -1) : EventLine(event)) + "\n");
    return printed;
  });
  if (!printed) {
    std::perror("memctl: stdout");
    return kExitRefused;
  }
  return Fail(outcome);
}

ExitCode Run(const CommandLine& line) {
  if (line.command == Command::kCompletionBash) return PrintOrFail(kCompletionBash);
  AdminClient client(line.socket_path, line.timeout);
  const Outcome connected = client.Connect();
  if (!connected.ok()) return Fail(connected);
  switch (line.command) {
    case Command::kStatus:
      return Show<v1::GetStatusResponse>(line.json, [&](auto* out) { return client.Status(out); });
    case Command::kDevices:
      return Show<v1::ListDevicesResponse>(line.json, [&](auto* out) { return client.Devices(out); });
    case Command::kSessions:
      return Show<v1::ListSessionsResponse>(line.json, [&](auto* out) { return client.Sessions(out); });
    case Command::kHolders:
      return Show<v1::ListHoldersResponse>(line.json, [&](auto* out) { return client.Holders(out); });
    case Command::kLeases:
      return Show<v1::ListLeasesResponse>(line.json, [&](auto* out) { return client.Leases(out); });
    case Command::kSegments:
      return Show<v1::ListAllSegmentsResponse>(line.json,
                                               [&](auto* out) { return client.Segments(line.segment, out); });
    case Command::kRemoveSegment:
      return RemoveSegment(&client, line);
    case Command::kQuarantine:
      return Show<v1::ListQuarantineResponse>(line.json, [&](auto* out) { return client.Quarantine(out); });
    case Command::kEvents:
      return Events(&client, line.json);
    case Command::kCompletionBash:
      break;
  }
  return kExitUsage;
}

}  // namespace
}  // namespace gpumem::memctl

int main(int argc, char** argv) {
  // A reader that left (`memctl events | head`) is an error of write(2), not a death.
  std::signal(SIGPIPE, SIG_IGN);
  const gpumem::memctl::Parsed parsed =
      gpumem::memctl::ParseCommandLine(std::vector<std::string>(argv + 1, argv + argc));
  if (parsed.exit >= 0) {
    std::fputs(parsed.text.c_str(), parsed.exit == 0 ? stdout : stderr);
    return parsed.exit;
  }
  return gpumem::memctl::Run(parsed.line);
}
