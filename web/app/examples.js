// The lab's examples: a few lines each. `base`, `photo` (bytes or None) and `progress` are there already.

// A client finds the site at the top of its host by itself; only one below a folder has to be named.
const where = new URL("../", import.meta.url).pathname === "/" ? "" : "base=base, ";

const OPEN = `from pyapp.client import Client

# Made once; run again, the same client goes on.
if "client" not in globals():
    client = await Client.create(adapter="auto", cloud_while_loading=False, ${where}on_progress=progress)
`;

export const EXAMPLES = {
  probe: `from pyapp.gpu.probe import probe

found = await probe("auto")  # or "software"
print(found.tier, "-", found.adapter, "-", found.reason)
print(found.limits)
`,
  describe: `${OPEN}
# Choose a photo below first.
seen = await client.describe(photo)
for label in seen["labels"]:
    print(f"{label['p']:6.1%}  {label['name']}")
print("by", seen["source"])
`,
  generate: `${OPEN}
request = "Write two sentences about a stoneware coffee mug."
async for event in client.generate(prompt=request, max_tokens=80):
    if event["type"] == "text":
        print(event["text"], end="")
    else:
        print(f"\\n{event}")
`,
  plan: `${OPEN}
plan = await client.inspect.plan("language")
for row in plan["rows"][:12]:
    print(f"{row['operation']:28} {row['kernel']:22} {row['dispatches']:3} {row['bytes']:>12,} bytes")
print(len(plan["rows"]), "rows;", plan["dispatchesPerLayer"], "dispatches a layer;", plan["activations"])
`,
};
