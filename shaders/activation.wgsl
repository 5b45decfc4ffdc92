// What a layer applies last.
fn activate(v: vec4f) -> vec4f {
//#if ACTIVATION == "relu6"
    return clamp(v, vec4f(0.0), vec4f(6.0));
//#else
//#if ACTIVATION == "relu"
    return max(v, vec4f(0.0));
//#else
    return v;
//#endif
//#endif
}
