// Lists the logits that reach `least_inverted`, finds both borders among them and draws. False where the list is too
// long, or does not hold top_p of the mass.
fn draw_from_list(local: u32, params: vec4f, by_count: bool, wanted: u32, top: f32, stopped: bool) -> bool {
    workgroupBarrier();
    let least = max(~atomicLoad(&least_inverted), 1u);
    var total = vec4f(0.0);
    for (var round = 0u; round < ROUNDS; round++) {
        let read = read_keys(round, local);
        var hits = 0u;
//#for i in LOADS
        hits |= select(0u, ${1 << i}u, largest(read[${i}]) >= least);
//#endfor
        if (!by_count) {
//#for i in LOADS
            total += masses(read[${i}], 1u, top, params.x);
//#endfor
        }
        // Few are listed, so reading them again costs less than a branch for each.
        while (hits != 0u) {
            let place = place_of(round, firstTrailingBit(hits), local);
            hits &= hits - 1u;
            let again = keys_of(logits[place]);
            for (var i = 0u; i < 4u; i++) {
                let id = 4u * place + i;
                if (again[i] >= least && id < V) {
                    let slot = atomicAdd(&found_count, 1u);
                    if (slot < ROOM) {
                        found[slot] = vec2u(again[i], place_in_walk(id));
                    }
                }
            }
        }
    }
    mass[local] = total.x + total.y + total.z + total.w;
    workgroupBarrier();
    let whole = sum_of_mass(select(WG, 0u, by_count));

    // Into the order of the walk, so that sums do not hang on who came first. Below the top_k largest there is no mass.
    let length = atomicLoad(&found_count);
    let count = min(length, ROOM);
    let first = found[local];
    let second = found[local + WG];
    var own_keys = vec2u(first.x, second.x);
    var above = vec2u(0u);
    var slots = vec2u(0u);
    for (var i = 0u; i < count; i++) {
        let other = found[i];
        above += select(vec2u(0u), vec2u(1u), vec2u(other.x) > own_keys);
        slots += select(vec2u(0u), vec2u(1u), vec2u(other.y) < vec2u(first.y, second.y));
    }
    let weights = masses(own_keys.xyxy, 1u, top, params.x).xy;
    let kept = select(vec2f(0.0), weights, (above < vec2u(wanted)) | vec2<bool>(!by_count));
    workgroupBarrier();
    if (local < count) {
        found[slots.x] = first;
        mass[slots.x] = kept.x;
    }
    if (local + WG < count) {
        found[slots.y] = second;
        mass[slots.y] = kept.y;
    }
    workgroupBarrier();

    // A token is kept as long as those above it do not hold top_p yet.
    own_keys = vec2u(found[local].x, found[local + WG].x);
    var held = 0.0;
    var held_above = vec2f(0.0);
    for (var i = 0u; i < count; i++) {
        held += mass[i];
        held_above += select(vec2f(0.0), vec2f(mass[i]), vec2u(found[i].x) > own_keys);
    }
    let share = params.y * select(whole, held, by_count);
    workgroupBarrier();
    if (params.y < 1.0) {
        mass[local] = select(0.0, mass[local], held_above.x < share);
        mass[local + WG] = select(0.0, mass[local + WG], held_above.y < share);
    }
    workgroupBarrier();

    if (local == 0u) {
        let holds = length <= ROOM && (by_count || held >= share);
        settled = select(0u, 1u, holds);
        if (holds && !stopped) {
            let at = passed(count, params.w * sum_of_mass(count));
            finish_step(select(token_at(found[at.index].y), NO_TOKEN, count == 0u));
        }
    }
    return workgroupUniformLoad(&settled) != 0u;
}
