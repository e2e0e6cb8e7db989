//! dump
use lockstep::data::{Split, Storm};
use std::io::Write;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let s: u32 = a[1].parse().unwrap();
    for (split, n, name) in
        [(Split::Train, a[2].parse::<usize>().unwrap(), "train"), (Split::Test, a[3].parse().unwrap(), "test")]
    {
        let st = Storm::new(1, split);
        let mut f = std::fs::File::create(format!("/tmp/wt-folder-x/{name}.bin")).unwrap();
        for i in 0..n {
            f.write_all(&[st.label(i) as u8]).unwrap();
            f.write_all(st.picture(i, s, s).as_raw()).unwrap();
        }
    }
}
