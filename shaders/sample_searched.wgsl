// Searches for both borders among all logits, two bits of a border a pass, and draws from what reaches them.
fn draw_from_all(local: u32, params: vec4f, by_count: bool, highest: u32, top: f32, stopped: bool) {
    var border = 1u;
    for (var search = 0u; search < 2u; search++) {
        let by_mass = search == 1u;
        if (!select(by_count, params.y < 1.0, by_mass)) {
            continue;
        }
        // The largest border that at least top_k logits reach (f32 counts them exactly), or at least top_p of the mass.
        var wanted = params.z;
        var reached = 0u;
        for (var bits = 0u; bits < 32u; bits += 2u) {
            let shift = 30u - bits;
            let candidates = vec4u(reached) | (vec4u(1u, 2u, 3u, 0u) << vec4u(shift));
            var part = vec4f(0.0);
            for (var round = 0u; round < ROUNDS; round++) {
                let read = read_keys(round, local);
                var weight = vec4f(1.0);
//#for i in LOADS
                if (by_mass) {
                    weight = masses(read[${i}], border, top, params.x);
                }
//#for j in 4
                part += select(vec4f(0.0), vec4f(weight[${j}]), vec4u(read[${i}][${j}]) >= candidates);
//#endfor
//#endfor
            }
            let total = sum_over_workgroup(local, part);
            if (by_mass && bits == 0u) {
                wanted = params.y * total.w;
            }
            let passing = select(vec3u(0u), vec3u(1u), total.xyz >= vec3f(wanted));
            reached |= (passing.x + passing.y + passing.z) << shift;
        }
        border = max(border, reached);
    }

    // The walk in three steps: to the ids that are the same modulo WG, to a run of RUN neighbours among them, to the token.
    var part = vec4f(0.0);
    for (var round = 0u; round < ROUNDS; round++) {
        let read = read_keys(round, local);
//#for i in LOADS
        part += masses(read[${i}], border, top, params.x);
//#endfor
    }
    put_sum(local, part);
    // Every (WG / 4)-th invocation reads logits of the same four remainders.
    var mine = 0.0;
    for (var i = 0u; i < 4u; i++) {
        mine += sum_of(local / 4u + i * (WG / 4u))[local % 4u];
    }
    mass[local] = mine;
    workgroupBarrier();
    let aim = params.w * sum_of_mass(WG);
    let same = passed(WG, aim);
    let begin = same.index * WALK;
    mine = 0.0;
    for (var i = 0u; i < RUN; i++) {
        mine += mass_at(local * RUN + i, begin, border, top, params.x);
    }
    workgroupBarrier();
    mass[local] = mine;
    workgroupBarrier();
    if (local != 0u || stopped) {
        return;
    }
    let run = passed(WG, aim - same.before);
    var before = run.before;
    var token = 0u;
    // Where rounding keeps the sum from passing the aim, the heaviest is taken.
    var heaviest = 0.0;
    for (var i = run.index * RUN; i < (run.index + 1u) * RUN; i++) {
        let weight = mass_at(i, begin, border, top, params.x);
        before += weight;
        if (weight > heaviest) {
            heaviest = weight;
            token = token_at(begin + i);
        }
        if (before > aim - same.before) {
            token = token_at(begin + i);
            break;
        }
    }
    finish_step(select(token, NO_TOKEN, highest == 0u));
}

fn put_sum(local: u32, sum: vec4f) {
    workgroupBarrier();
    found[2u * local] = bitcast<vec2u>(sum.xy);
    found[2u * local + 1u] = bitcast<vec2u>(sum.zw);
    workgroupBarrier();
}

fn sum_of(invocation: u32) -> vec4f {
    return bitcast<vec4f>(vec4u(found[2u * invocation], found[2u * invocation + 1u]));
}

fn sum_over_workgroup(local: u32, sum: vec4f) -> vec4f {
    put_sum(local, sum);
    var total = vec4f(0.0);
    if (local < 16u) {
        for (var i = 0u; i < WG / 16u; i++) {
            total += sum_of(local * (WG / 16u) + i);
        }
    }
    put_sum(local, total);
    total = vec4f(0.0);
    for (var i = 0u; i < 16u; i++) {
        total += sum_of(i);
    }
    return total;
}

// The mass of the token that is `i` places behind `begin` in the walk.
fn mass_at(i: u32, begin: u32, border: u32, top: f32, factor: f32) -> f32 {
    let id = token_at(begin + i);
    if (i >= WALK || id >= V) {
        return 0.0;
    }
    return masses(keys_of(logits[id / 4u]), border, top, factor)[id % 4u];
}
