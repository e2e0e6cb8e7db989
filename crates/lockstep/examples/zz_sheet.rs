use lockstep::data::{Split, Storm};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (w, h): (u32, u32) = (a[1].parse().unwrap(), a[2].parse().unwrap());
    let n: u32 = a[3].parse().unwrap();
    let s = Storm::new(1, Split::Train);
    let mut out = image::RgbImage::new(w * n, h * 3);
    let mut next = [0u32; 3];
    for i in 0..(n as usize * 3) {
        let l = s.label(i) as usize;
        let p = s.picture(i, w, h);
        image::imageops::replace(&mut out, &p, (next[l] * w) as i64, (l as u32 * h) as i64);
        next[l] += 1;
    }
    out.save(&a[4]).unwrap();
}
