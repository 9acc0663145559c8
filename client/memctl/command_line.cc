#include "client/memctl/command_line.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>

#include "client/memctl/admin_client.h"
#include "client/memctl/format.h"

namespace gpumem::memctl {
namespace {

constexpr const char* kDefaultSocket = "/run/gpumemd-admin/admin.sock";

constexpr double kMaxTimeoutSeconds = 86400;

constexpr const char* kFooter =
    "Sizes are human-readable in tables and exact bytes in JSON.\n"
    "\nExit codes:\n"
    "  0  done\n"
    "  1  the daemon refused, or the answer could not be written\n"
    "  2  the command line is wrong\n"
    "  3  no daemon at the socket, or the connection broke\n"
    "  4  not permitted: the admin socket is for root, the daemon's user and the configured group\n"
    "  5  no answer in time (--timeout)\n";

std::string DefaultSocket() {
  const char* from_environment = std::getenv("GPUMEM_ADMIN_SOCKET");
  return from_environment != nullptr && *from_environment != '\0' ? from_environment : kDefaultSocket;
}

std::string Version() { return "memctl " GPUMEM_VERSION "\n"; }

}  // namespace

Parsed ParseCommandLine(const std::vector<std::string>& arguments) {
  Parsed parsed;
  CommandLine& line = parsed.line;
  line.socket_path = DefaultSocket();
  double timeout_s = 5;

  CLI::App app("memctl: look into a running gpumemd, and remove segments", "memctl");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", [] { return Version(); });
  app.add_option("--socket", line.socket_path,
                 "The daemon's admin socket ($GPUMEM_ADMIN_SOCKET, else " + std::string(kDefaultSocket) + ")")
      ->type_name("PATH");
  app.add_option("--timeout", timeout_s, "Longest wait for each answer, in seconds (5); events wait without end")
      ->type_name("SECONDS")
      ->check([](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool right = end != text.c_str() && *end == '\0' && value >= 0.001 && value <= kMaxTimeoutSeconds;
        return right ? std::string() : "it is '" + text + "'; it must be a number from 0.001 to 86400";
      });
  app.add_flag("--json", line.json, "JSON in place of tables; events: one object a line");

  const auto add = [&](CLI::App* parent, const char* name, const char* what, Command command) {
    CLI::App* sub = parent->add_subcommand(name, what);
    sub->callback([&line, command] { line.command = command; });
    sub->fallthrough();
    return sub;
  };
  add(&app, "status", "The daemon, its devices and tenants", Command::kStatus);
  add(&app, "devices", "Each device's books", Command::kDevices);
  add(&app, "sessions", "Worker processes, live and fenced", Command::kSessions);
  add(&app, "holders", "Named consumers inside the sessions", Command::kHolders);
  add(&app, "leases", "Granted allocations and the state of their chunks", Command::kLeases);
  CLI::App* segments = app.add_subcommand("segments", "Named durable memory; `segments rm NAME@VERSION` removes one");
  segments->fallthrough();
  segments->add_option("--prefix", line.segment, "Only names that begin with this");
  CLI::App* remove = segments->add_subcommand("rm", "Remove a segment that no session has attached");
  remove->fallthrough();
  remove->add_option("name", line.segment, "[namespace/…]name@version")->required()->type_name("NAME@VERSION");
  // CLI11 runs the callbacks of nested commands before their parents', so the parent decides.
  segments->callback([&] { line.command = remove->parsed() ? Command::kRemoveSegment : Command::kSegments; });
  add(&app, "quarantine", "Memory that waits for evidence, and for which", Command::kQuarantine);
  add(&app, "events", "What happens on the node, as it happens, until Ctrl-C", Command::kEvents);
  CLI::App* completion = app.add_subcommand("completion", "A completion script for a shell");
  add(completion, "bash", "source <(memctl completion bash)", Command::kCompletionBash);
  completion->require_subcommand(1);

  try {
    // CLI11 takes the arguments last one first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    // The help of the innermost command named.
    const CLI::App* named = &app;
    std::string parents;
    while (!named->get_subcommands().empty()) {
      parents += (parents.empty() ? "" : " ") + named->get_name();
      named = named->get_subcommands().front();
    }
    parsed.exit = kExitOk;
    parsed.text = named->help(parents);
    return parsed;
  } catch (const CLI::CallForVersion& version) {
    parsed.exit = kExitOk;
    parsed.text = version.what();
    return parsed;
  } catch (const CLI::ParseError& error) {
    parsed.exit = kExitUsage;
    const std::vector<std::string> rest = app.remaining();
    const std::string what = !app.get_subcommands().empty() || rest.empty()
                                 ? error.what()
                                 : "there is no command or option '" + rest.front() + "'";
    parsed.text = "memctl: " + Printable(what) + "; see memctl --help\n";
    return parsed;
  }
  line.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(timeout_s * 1000)));
  return parsed;
}

}  // namespace gpumem::memctl
